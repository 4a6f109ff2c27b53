#!lua flags=allow-oom
-- Give partitions back.
-- keyspace: partition
-- keys: base head
-- args: worker, processors
-- result: how many were given back
-- include: log/_partition

local p, given = KEYS[1], 0
for i = 2, #ARGV do
  local owner = string.match(call('HGET', p .. 'leases', ARGV[i]) or '', '^%d+ (.+)$')
  if owner == ARGV[1] then
    -- What was begun was stopped: nobody has died of it.
    given = given + 1
    call('HDEL', p .. 'leases', ARGV[i], 'begun ' .. ARGV[i])
  end
end
return given
