--[[
  Everything that the keys of one node hold, for comparison.

  KEYS  none: it looks at all keys of the node that match
  ARGV  1 a glob for the keys

  Result: {key, type, value, pttl} for each key; the value is as the type's own command returns it.
]]
local read = {
    string = function(key) return redis.call('GET', key) end,
    list = function(key) return redis.call('LRANGE', key, 0, -1) end,
    set = function(key) return redis.call('SMEMBERS', key) end,
    zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
    hash = function(key) return redis.call('HGETALL', key) end,
    stream = function(key) return redis.call('XRANGE', key, '-', '+') end,
}

local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
    local kind = redis.call('TYPE', key).ok
    found[#found + 1] = {key, kind, read[kind](key), redis.call('PTTL', key)}
end
return found
