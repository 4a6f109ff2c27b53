#!lua flags=allow-oom
-- How long the rate limit holds.
-- keyspace: queue
-- keys: base meta
-- args: the worker's limit, or 0 for the queue's
-- result: milliseconds
-- include: queue/_queue
-- include: queue/_take

local q, max = KEYS[1], tonumber(ARGV[1])
if max == 0 then
  max = tonumber(call('HGET', q .. 'meta', 'max'))
end
if not max then
  return call('PTTL', q .. 'limiter')
end
return (limit_left(q, max))
