--[[
  Delete all keys of one node that match.

  KEYS  none: it looks at all keys of the node that match
  ARGV  1 a glob for the keys

  Result: how many keys were deleted.
]]
local gone = 0
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
    gone = gone + redis.call('DEL', key)
end
return gone
