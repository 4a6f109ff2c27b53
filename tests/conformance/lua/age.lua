--[[
  Let keys that expire grow older, as if time had passed for the server too.

  Times to live are counted in steps (see README.md): what is left is rounded up to whole steps, so the
  moments that really pass between two commands make no difference.

  KEYS  none: it looks at all keys of the node that match
  ARGV  1 a glob for the keys, 2 steps that pass, 3 length of a step in ms

  Result: how many keys expired.
]]
local steps, length = tonumber(ARGV[2]), tonumber(ARGV[3])
local gone = 0
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
    local left = redis.call('PTTL', key)
    if left >= 0 then
        local after = math.ceil(left / length) - steps
        if after > 0 then
            redis.call('PEXPIRE', key, after * length)
        else
            gone = gone + redis.call('DEL', key)
        end
    end
end
return gone
