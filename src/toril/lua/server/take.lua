#!lua
-- Take from a bucket that fills at a steady rate. It fills exactly: a part of one is kept, however often it is
-- looked at, because what is counted is whole numbers. One to take is as many units as a second's worth of
-- microseconds, times the seconds that `rate` is for, and each microsecond brings `rate` units.
-- keyspace: rate
-- keys: bucket
-- args: rate, for so many seconds, how many there are at most, how many to take
-- result: 1 where they were taken and else 0, how many are left, ms until so many are there

local rate, seconds, most, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local one = seconds * 1000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local kept = redis.call('HMGET', KEYS[1], 'units', 'at')
local units, at = most * one, now
if kept[1] then
  -- A clock that was set back brings nothing, and takes nothing.
  at = math.max(now, tonumber(kept[2]))
  units = math.min(most * one, tonumber(kept[1]) + (at - tonumber(kept[2])) * rate)
end
local taken = units >= wanted * one and 1 or 0
units = units - taken * wanted * one
redis.call('HSET', KEYS[1], 'units', string.format('%.0f', units), 'at', string.format('%.0f', at))
redis.call('PEXPIRE', KEYS[1], math.ceil((most * one - units) / rate / 1000) + 1000)
local missing = math.max(0, wanted * one - units)
return { taken, math.floor(units / one), taken == 1 and 0 or math.ceil(missing / rate / 1000) }
