#!lua flags=no-writes
-- How a room stands.
-- keyspace: room
-- keys: base meta
-- args: none
-- result: ms now, settings, then for each lane: its name, its counters, how many were let in and are not done
-- include: room/_room
-- include: room/_line

local p = KEYS[1]
local now = math.floor(now_us() / 1000)
local result = { text(now), call('HGETALL', p .. 'meta') }
for _, lane in ipairs(LANES) do
  local l = p .. lane .. ':'
  result[#result + 1] = { lane, call('HGETALL', l .. 'line'), active_of(l, now) }
end
return result
