#!lua flags=allow-oom
-- Take a retired processor's checkpoints and states away from aggregates that are here.
-- keyspace: partition
-- keys: base head
-- args: processor, aggregates
-- result: for each: '1' it had some, '0' it had none, 'F ms' not here at that time
-- include: log/_partition
-- include: log/_readers

local p, processor, now, results = KEYS[1], ARGV[1], now_ms(), {}
if reader_of(p, processor) then
  return redis.error_reply('NOPLACE this processor is registered: it was not retired')
end
for i = 2, #ARGV do
  local key, result = p .. 'a:' .. ARGV[i], '0'
  if call('HEXISTS', key, 'v') == 0 then
    result = 'F ' .. text(now)
  elseif call('HDEL', key, 'c:' .. processor, 's:' .. processor) > 0 then
    call('HINCRBY', key, 'c', 1)
    result = '1'
  end
  results[#results + 1] = result
end
return results
