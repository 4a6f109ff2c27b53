#!lua flags=allow-oom
-- Aggregates that have been quiet, the quietest first, with all they have in Redis. While they are on their way
-- to the cold store that is noted, so that who erases a tenant waits for them.
-- keyspace: partition
-- keys: base head
-- args: ms they must have been quiet, aggregates at most, bytes at most (passed by one aggregate at most),
--       a word for this journey; aggregates: these, however quiet they are
-- result: for each: aggregate, all fields and values
-- include: log/_partition

local p, quiet, most, bytes = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local head = call('HMGET', p .. 'head', 'sealed', 'carry')
local found, size = {}, 0
if head[1] or head[2] then
  return found
end
local now = now_ms()
local chosen = { unpack(ARGV, 5) }
if #chosen == 0 then
  chosen = call('ZRANGEBYSCORE', p .. 'activity', 1, now - quiet, 'LIMIT', 0, most)
end
for _, aggregate in ipairs(chosen) do
  local fields = call('HGETALL', p .. 'a:' .. aggregate)
  if #fields > 0 and call('SISMEMBER', p .. 'walls', tenant_of(aggregate)) == 0 then
    found[#found + 1] = { aggregate, fields }
    for _, text in ipairs(fields) do
      size = size + #text
    end
    if size >= bytes then
      break
    end
  end
end
if #found > 0 then
  call('ZADD', p .. 'leaving', now, ARGV[4])
end
return found
