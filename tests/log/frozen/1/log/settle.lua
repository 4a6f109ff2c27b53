#!lua flags=allow-oom
-- Without a cold store: aggregates that have been quiet keep their version, and forget what is past the
-- window of idempotency and no longer in the stream.
-- keyspace: partition
-- keys: base head
-- args: ms they must have been quiet, window of idempotency in ms, aggregates at most
-- result: aggregates looked at
-- include: log/_partition

local p, quiet, window, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, trimmed = now_ms(), trimmed_of(p)
local RECORDS = 1000
if call('HEXISTS', p .. 'head', 'sealed') == 1 then
  return 0
end
local before = now - math.max(quiet, window)
local found = call('ZRANGEBYSCORE', p .. 'activity', 1, before, 'LIMIT', 0, most)
for _, aggregate in ipairs(found) do
  local key = p .. 'a:' .. aggregate
  local its = call('HMGET', key, 'v', 'x')
  local version = tonumber(its[1] or '0')
  local _, oldest = prune(key, tonumber(its[2] or '1'), version, trimmed, now - window, RECORDS)
  if version == 0 and call('HLEN', key) <= 3 then -- v, c, t: it never began
    call('UNLINK', key)
    call('ZREM', p .. 'activity', aggregate)
  else
    -- Settled ones are listed at 0; those with entries left in the stream are looked at again later.
    call('ZADD', p .. 'activity', oldest > version and 0 or now, aggregate)
  end
end
return #found
