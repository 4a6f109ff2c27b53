#!lua flags=no-writes
-- The ids at places of states. The first place of a list is what was added last; oldest first turns that round.
-- keyspace: queue
-- keys: base meta
-- args: first, last, 1 for oldest first, states as key suffixes
-- result: a list of ids each
-- include: queue/_queue

local LISTS = { wait = true, paused = true, active = true }
local first, last, oldest_first = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

-- Places counted from the other end.
local function mirrored(place)
  return 0 - (place + 1) -- not -(…): Lua would write -0, which is no number for Redis
end

local found = {}
for place = 4, #ARGV do
  local key = KEYS[1] .. ARGV[place]
  local ids
  if not LISTS[ARGV[place]] then
    ids = call(oldest_first and 'ZRANGE' or 'ZREVRANGE', key, first, last)
  elseif oldest_first then
    ids = call('LRANGE', key, mirrored(last), mirrored(first))
  else
    ids = call('LRANGE', key, first, last)
  end
  found[#found + 1] = ids
end
return found
