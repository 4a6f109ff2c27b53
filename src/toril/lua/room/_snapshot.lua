-- What positions are computed from, far from the server. For each lane:
--   <lane>         head, last place, tickets issued, waiting, inside, rate observed (thousandths per second),
--                  rate set, most inside, sealed, placed
--   <lane>:counts  how many wait in each stretch from the head's on, two bytes each
--   <lane>:front   the bitmaps of the head's stretch and the one after it

local OBSERVE_EVERY = 1000 -- ms
local OBSERVED_OVER = 10000 -- ms after which what was observed before counts for a third

-- How fast people are let in, while there are some who wait.
local function observe(l, line, now)
  local found = call('HMGET', l .. 'line', 'observed', 'observed_at', 'observed_n')
  local rate, at, before = tonumber(found[1] or '0'), tonumber(found[2] or '0'), tonumber(found[3] or '0')
  local passed, came = now - at, line.admitted - before
  if passed < OBSERVE_EVERY and passed >= 0 then
    return rate
  end
  if at > 0 and passed > 0 and (came > 0 or line.waiting > 0) then
    local latest = came * 1000000 / passed
    if rate == 0 then
      rate = latest
    else
      rate = rate + (latest - rate) * (1 - math.exp(-passed / OBSERVED_OVER))
    end
    rate = math.floor(rate + 0.5)
  end
  call('HSET', l .. 'line', 'observed', rate, 'observed_at', now, 'observed_n', line.admitted)
  return rate
end

local function counts_of(l, first, last)
  local packed = {}
  for from = first, last, 500 do
    local wanted = {}
    for stretch = from, math.min(from + 499, last) do
      wanted[#wanted + 1] = stretch
    end
    local found = call('HMGET', l .. 'counts', unpack(wanted))
    for i = 1, #wanted do
      packed[#packed + 1] = struct.pack('>I2', tonumber(found[i] or '0'))
    end
  end
  return table.concat(packed)
end

local function padded(bitmap)
  return bitmap .. string.rep('\0', STRETCH / 8 - #bitmap)
end

local function snapshot_of(p, lane, now)
  local l = p .. lane .. ':'
  local line = line_of(l)
  local rate, _, most = limits_of(p, lane)
  local first = stretch_of(line.head + 1)
  local numbers = {
    line.head, line.last, line.issued, line.waiting, active_of(l, now), observe(l, line, now), rate, most,
    line.sealed, line.placed,
  }
  for i, number in ipairs(numbers) do
    numbers[i] = text(number)
  end
  local front = padded(call('GET', l .. first .. ':alive') or '') .. (call('GET', l .. first + 1 .. ':alive') or '')
  return table.concat(numbers, ' '), counts_of(l, first, stretch_of(math.max(line.last, 1))), front
end

local function publish(p, room, now)
  local fields = {
    'now', text(now), 'mode', room.mode, 'phase', room.phase, 'paused', room.paused, 'patience', room.patience,
  }
  for _, lane in ipairs(LANES) do
    local numbers, counts, front = snapshot_of(p, lane, now)
    for _, field in ipairs({ lane, numbers, lane .. ':counts', counts, lane .. ':front', front }) do
      fields[#fields + 1] = field
    end
  end
  call('HSET', p .. 'snapshot', unpack(fields))
  return call('HINCRBY', p .. 'snapshot', 'v', 1)
end
