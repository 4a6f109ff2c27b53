#!lua
-- Events of an aggregate wait for a processor that has not begun: it tries them first. They may come in several
-- calls, and those that wait already stay.
-- keyspace: partition
-- keys: base head
-- args: processor, the reader that keeps its place, aggregate, record of the trouble, how many wait before
--       these, entries
-- result: 'A' they wait, 'S' it has begun, 'E' the tenant was erased since, or is being erased
-- include: log/_partition
-- include: log/_readers

local p, processor, floor, aggregate = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local tenant, list = tenant_of(aggregate), p .. 'q:' .. processor .. ' ' .. aggregate
if not reader_of(p, floor) then
  return redis.error_reply('GONE this generation is not being loaded')
elseif call('SISMEMBER', p .. 'walls', tenant) == 1 or call('SISMEMBER', p .. 'e:' .. floor, tenant) == 1 then
  return 'E'
elseif reader_of(p, processor) then
  return 'S'
end
local there = call('LLEN', list) - tonumber(ARGV[5])
if there < 0 then
  return redis.error_reply('GONE events that wait before these have not come, or are gone')
end
for i = 6 + there, #ARGV do
  call('RPUSH', list, ARGV[i])
end
call('ZADD', p .. 'w:' .. processor, now_ms(), aggregate)
call('HSET', p .. 'x:' .. processor, aggregate, ARGV[4])
return 'A'
