#!lua flags=allow-oom
-- Give the seats of an epoch back, by its owner: of a hold, or (a refund) of a sale.
-- keyspace: seats
-- keys: base head
-- args: owner, epoch, h or s
-- result: 'ok' seat …; 'gone' where there is nothing of that owner's under this epoch; 'sold', 'held'
-- include: room/_seats

local b, owner, epoch, state = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local its = hold_of(b, epoch)
if not its or its.owner ~= owner then
  return { 'gone' }
end
if its.state ~= state then
  return { COUNT_OF[its.state] }
end
give_back(b, epoch, its)
return conserved(b, { 'ok', unpack(its.seats) })
