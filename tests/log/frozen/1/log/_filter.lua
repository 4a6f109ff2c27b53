-- The filter that remembers which aggregates are cold: a chain of Bloom filters, each level four times as
-- large as the one before, up to the largest. It never forgets one; it may take a new one for a cold one,
-- which costs a look into the cold store. When the largest level is full it goes on filling: memory stays
-- bounded, and the look-ups for new aggregates become more.

local FIRST_LEVEL = 32768 -- bits; 4 KiB
local LEVELS = 6 -- the last one has 4 MiB
local HASHES = 7
local BITS_PER_ITEM = 10 -- with seven hashes: about one in a hundred new ones is taken for a cold one

local function bits_of(level)
  return FIRST_LEVEL * 4 ^ (level - 1)
end

local function filter_places(item, level)
  local hex = redis.sha1hex(item)
  local first, step = tonumber(string.sub(hex, 1, 8), 16), tonumber(string.sub(hex, 9, 16), 16)
  local bits, places = bits_of(level), {}
  for i = 1, HASHES do
    places[i] = (first + i * step) % bits
  end
  return places
end

local function in_level(p, item, level)
  local key = p .. 'f:' .. level
  for _, place in ipairs(filter_places(item, level)) do
    if call('GETBIT', key, place) == 0 then
      return false
    end
  end
  return true
end

local function perhaps_cold(p, item, levels)
  for level = levels, 1, -1 do
    if in_level(p, item, level) then
      return true
    end
  end
  return false
end

local function remember_cold(p, item)
  local head = call('HMGET', p .. 'head', 'levels', 'filtered')
  local levels, count = tonumber(head[1] or '0'), tonumber(head[2] or '0')
  if perhaps_cold(p, item, levels) then
    return
  end
  if levels == 0 or (levels < LEVELS and count >= bits_of(levels) / BITS_PER_ITEM) then
    levels, count = levels + 1, 0
  end
  local key = p .. 'f:' .. levels
  for _, place in ipairs(filter_places(item, levels)) do
    call('SETBIT', key, place, 1)
  end
  call('HSET', p .. 'head', 'levels', levels, 'filtered', count + 1)
end
