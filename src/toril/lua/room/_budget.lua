-- The budget of a lane: a bucket that fills at the rate and holds the burst. All in whole numbers, so that no
-- fraction is ever lost or gained: a thousandth of an admission per second, for a microsecond, is one unit.

local UNIT = 1000000000 -- one admission

-- What the settings say: rate in thousandths per second, burst, most inside at a time (-1: any number).
local function limits_of(p, lane)
  local found = call('HMGET', p .. 'meta', lane .. ':rate', lane .. ':burst', lane .. ':max')
  return tonumber(found[1]) or 0, tonumber(found[2]) or 0, tonumber(found[3]) or 0
end

-- What is in the bucket now. Where the clock was set back, nothing is added for that time.
local function level_at(l, rate, burst, us)
  local found = call('HMGET', l .. 'line', 'level', 'at')
  local full = burst * UNIT
  if not found[1] then
    return full
  end
  local level, passed = math.min(tonumber(found[1]), full), math.max(us - found[2], 0)
  if rate > 0 and passed >= (full - level) / rate then -- the product could be too large for a whole number
    return full
  end
  return level + passed * rate
end

local function keep_level(l, level, us)
  call('HSET', l .. 'line', 'level', text(level), 'at', text(us))
end
