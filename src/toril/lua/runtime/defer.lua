#!lua
-- Events of an aggregate wait for a processor that has not begun: it tries them first. Those that wait already
-- stay.
-- keyspace: partition
-- keys: base head
-- args: processor, the reader that keeps its place, aggregate, record of the trouble, entries
-- result: 'A' they wait, 'S' they do already, or it has begun, 'E' the tenant was erased since, or is being erased
-- include: log/_partition
-- include: log/_readers

local p, processor, floor, aggregate = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local tenant, list = tenant_of(aggregate), p .. 'q:' .. processor .. ' ' .. aggregate
if not reader_of(p, floor) then
  return redis.error_reply('GONE this generation is not being loaded')
elseif call('SISMEMBER', p .. 'walls', tenant) == 1 or call('SISMEMBER', p .. 'e:' .. floor, tenant) == 1 then
  return 'E'
elseif reader_of(p, processor) or call('ZSCORE', p .. 'w:' .. processor, aggregate) then
  return 'S'
end
for i = 5, #ARGV do
  call('RPUSH', list, ARGV[i])
end
call('ZADD', p .. 'w:' .. processor, now_ms(), aggregate)
call('HSET', p .. 'x:' .. processor, aggregate, ARGV[4])
return 'A'
