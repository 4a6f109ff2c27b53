#!lua flags=allow-oom
-- Be known as a worker of a processor for a time; say who else is.
-- keyspace: log
-- keys: base meta
-- args: processor, worker, ms it lasts (0: be known no more)
-- result: the workers that are known, in the order of their names

local key, now = KEYS[1] .. 'm:' .. ARGV[1], redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if ARGV[3] == '0' then
  redis.call('ZREM', key, ARGV[2])
else
  redis.call('ZADD', key, now + ARGV[3], ARGV[2])
  if redis.call('PTTL', key) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', key, ARGV[3])
  end
end
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
local known = redis.call('ZRANGE', key, 0, -1)
table.sort(known)
return known
