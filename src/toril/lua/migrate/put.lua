#!lua
-- Write a value of any type but a stream, with its time to live, where there is none.
-- keyspace: queue
-- keys: base
-- args: type, time to live in ms (0: it stays), then the value, as the type's own command takes it
-- result: 1, or 0 where there is one

local key, kind, ttl = KEYS[1], ARGV[1], tonumber(ARGV[2])
local WRITE = { string = 'SET', list = 'RPUSH', set = 'SADD', hash = 'HSET', zset = 'ZADD' }
local STEP = 5000 -- arguments of one command; Lua's stack holds 8000
if redis.call('EXISTS', key) == 1 then
  return 0
end
for first = 3, #ARGV, STEP do
  redis.call(WRITE[kind], key, unpack(ARGV, first, math.min(first + STEP - 1, #ARGV)))
end
if ttl > 0 then
  redis.call('PEXPIRE', key, ttl)
end
return 1
