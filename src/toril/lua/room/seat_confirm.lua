#!lua flags=allow-oom
-- Sell the seats of a hold to its owner, for good. Asked for again, the answer is the same.
-- keyspace: seats
-- keys: base head
-- args: owner, epoch
-- result: 'ok' seat …, or 'gone'
-- include: room/_seats

local b, owner, epoch = KEYS[1], ARGV[1], ARGV[2]
local its = hold_of(b, epoch)
if not its or its.owner ~= owner then
  return { 'gone' }
end
if its.state == 'h' then
  if its.ends <= now_ms() then
    give_back(b, epoch, its)
    return conserved(b, { 'gone' })
  end
  move(b, its.seats, 'h', 's', epoch)
  its.state = 's'
  save_hold(b, epoch, its)
  call('ZREM', b .. 'due', epoch)
end
return conserved(b, { 'ok', unpack(its.seats) })
