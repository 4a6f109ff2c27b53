#!lua
-- A cold aggregate comes back, or one that the cold store does not know may begin.
-- keyspace: partition
-- keys: base head
-- args: aggregate, when it was found missing (ms), for how long what the cold store said then holds (ms),
--       and its fields and values (none: it does not exist)
-- result: 1 it is here, 0 ask the cold store again
-- include: log/_partition

local p, aggregate, asked, holds = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local key, now = p .. 'a:' .. aggregate, now_ms()
if call('EXISTS', key) == 1 then
  return 1
end
if now - asked > holds then
  return 0
end
local FIELDS = 4000
call('HSET', key, 'v', 0, 'c', 0)
for first = 4, #ARGV, FIELDS do
  call('HSET', key, unpack(ARGV, first, math.min(first + FIELDS - 1, #ARGV)))
end
call('HINCRBY', key, 'c', 1)
call('HSET', key, 't', now)
call('ZADD', p .. 'activity', now, aggregate)
return 1
