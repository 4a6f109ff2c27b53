#!lua flags=allow-oom
-- Take no more events of a tenant while it is being erased, or take them again.
-- keyspace: partition
-- keys: base head
-- args: tenant, 1 or 0
-- result: journeys to the cold store that are under way
-- include: log/_partition

local p, tenant, now = KEYS[1], ARGV[1], now_ms()
local DAY = 24 * 3600 * 1000
local LONGEST = 60 * 1000 -- who travels for longer is taken to be gone
call('ZREMRANGEBYSCORE', p .. 'leaving', '-inf', now - LONGEST)
-- Who is loaded from a copy must not bring a tenant back that was erased since the copy was made.
for _, reader in ipairs(call('HKEYS', p .. 'readers')) do
  if string.sub(reader, -5) == ':load' then
    call('SADD', p .. 'e:' .. reader, tenant)
  end
end
if ARGV[2] == '1' then
  call('SADD', p .. 'walls', tenant)
  return call('ZRANGE', p .. 'leaving', 0, -1)
end
-- What was read before, and is still on its way back, must not come in.
call('ZADD', p .. 'erased', now, tenant)
call('ZREMRANGEBYSCORE', p .. 'erased', '-inf', now - DAY)
call('SREM', p .. 'walls', tenant)
return {}
