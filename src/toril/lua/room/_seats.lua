-- What every script of the seats knows about them. `b` is their key prefix, `toril:{evt}:seats:`.
--
-- A seat (`seats`) is `a` (available), `h <epoch>` (held) or `s <epoch>` (sold). An epoch (`holds`) is a hold
-- or what became of it: `<h or s> <ends at, ms> <owner> <key it was asked for with> <seat> <seat> …`. Names of
-- seats, owners and keys hold no space. Epochs only grow, whatever is reset: a seat's holder can be fenced by
-- them, wherever else that seat is written down.
--
-- Every script names two keys: `base`, which never exists, and `head`. While a cluster moves their slot, the
-- servers refuse calls of which some keys are missing, so no script meets half of an event.

local call = redis.call

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What an epoch says; nil where there is none.
local function hold_of(b, epoch)
  local text = call('HGET', b .. 'holds', epoch)
  if not text then
    return nil
  end
  local parts = {}
  for part in string.gmatch(text, '%S+') do
    parts[#parts + 1] = part
  end
  local its = { state = parts[1], ends = tonumber(parts[2]), owner = parts[3], key = parts[4], seats = {} }
  for i = 5, #parts do
    its.seats[i - 4] = parts[i]
  end
  return its
end

local function save_hold(b, epoch, its)
  local parts = { its.state, string.format('%.0f', its.ends), its.owner, its.key }
  call('HSET', b .. 'holds', epoch, table.concat(parts, ' ') .. ' ' .. table.concat(its.seats, ' '))
end

local COUNT_OF = { a = 'available', h = 'held', s = 'sold' }

-- All seats of an epoch go from one state into another; the counts with them.
local function move(b, seats, from, to, epoch)
  local value = to == 'a' and 'a' or to .. ' ' .. epoch
  for _, seat in ipairs(seats) do
    call('HSET', b .. 'seats', seat, value)
  end
  call('HINCRBY', b .. 'head', COUNT_OF[from], -#seats)
  call('HINCRBY', b .. 'head', COUNT_OF[to], #seats)
  call('HINCRBY', b .. 'head', 'changes', 1)
end

-- The seats of an epoch are for others again, and nothing is left of it.
local function give_back(b, epoch, its)
  move(b, its.seats, its.state, 'a')
  call('HDEL', b .. 'holds', epoch)
  call('ZREM', b .. 'due', epoch)
  call('HDEL', b .. 'asked', its.key)
  if call('HINCRBY', b .. 'owners', its.owner, -#its.seats) <= 0 then
    call('HDEL', b .. 'owners', its.owner)
  end
end

-- The answer of a script, if the counts still add up.
local function conserved(b, answer)
  local n = call('HMGET', b .. 'head', 'total', 'available', 'held', 'sold')
  if tonumber(n[2] or 0) + tonumber(n[3] or 0) + tonumber(n[4] or 0) ~= tonumber(n[1] or 0) then
    return redis.error_reply('UNCONSERVED available, held and sold seats are not all there are: '
      .. 'run `toril room seats check`')
  end
  return answer
end
