#!lua flags=allow-oom
-- The parked events of an aggregate come from the epoch before, before a processor begins with this one.
-- What was brought before, by a worker that died meanwhile, is replaced.
-- keyspace: partition
-- keys: base head
-- args: processor, aggregate, due, record of the trouble or '', checkpoint, state or '', entries
-- result: 'A' done, 'F ms' the aggregate was not here at that time, 'E ms' and its tenant is being erased, or was
-- include: log/_partition
-- include: log/_arrive
-- include: log/_readers

local p, processor, aggregate = KEYS[1], ARGV[1], ARGV[2]
local reader, key = reader_of(p, processor), p .. 'a:' .. aggregate
if not reader then
  return redis.error_reply('GONE this processor is not registered: it was retired')
elseif reader.fence > 0 then
  return redis.error_reply('NOPLACE this processor has begun with the next epoch already')
elseif call('HEXISTS', key, 'v') == 0 then
  return (erased_since(p, aggregate, 0) and 'E ' or 'F ') .. now_ms()
end
local list = p .. 'q:' .. processor .. ' ' .. aggregate
call('UNLINK', list)
for i = 7, #ARGV do
  call('RPUSH', list, ARGV[i])
end
call('ZADD', p .. 'w:' .. processor, ARGV[3], aggregate)
if ARGV[4] ~= '' then
  call('HSET', p .. 'x:' .. processor, aggregate, ARGV[4])
else
  call('HDEL', p .. 'x:' .. processor, aggregate)
end
call('HSET', key, 'c:' .. processor, ARGV[5])
if ARGV[6] ~= '' then
  call('HSET', key, 's:' .. processor, ARGV[6])
end
call('HINCRBY', key, 'c', 1)
return 'A'
