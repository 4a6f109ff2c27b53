#!lua flags=allow-oom
-- Begin a round in a room of several shards: how many each of them may let in, and up to which place. The round
-- that is open is told again. Where a shard has done a round that the room knows nothing of, or where another
-- server decides than before, the room may have forgotten something: then the next round lets nobody in, and hears
-- what the shards have done. Nor does one while a shard has yet to draw its order again.
-- keyspace: room
-- keys: base meta
-- args: tickets that a shard handles at most; the last round that a shard has done, and when that began, or 0 and ''
-- result: round, when it began, version of the settings, phase, whether the room is being reset, then for each lane:
--         its name, what each shard may let in, up to which place, how many cuts were before the next ones, the
--         next cuts
-- include: room/_room
-- include: room/_line
-- include: room/_budget
-- include: room/_round

local p, steps, done, done_from = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local us = now_us()
local now = math.floor(us / 1000)
if room.phase == 'gathering' and room.opens > 0 and now >= room.opens then
  room.phase = 'shuffling'
  call('HSET', p .. 'meta', 'phase', room.phase)
  note(p, us, 'what', 'start', 'seed', room.seed)
end

local function budget_of(l, lane, active)
  if room.phase ~= 'open' or room.paused == 1 or room.resetting == 1 or room.mode == 'reject' then
    return 0
  elseif room.mode == 'passthrough' then
    return steps * room.shards
  end
  local rate, burst, most = limits_of(p, lane)
  local budget = math.floor(level_at(l, rate, burst, us) / UNIT)
  if most >= 0 then
    budget = math.min(budget, most - active)
  end
  return math.max(budget, 0)
end

-- For each shard, at most how many wait up to each of the next cuts.
local function waiting_upto(line, cuts, before)
  local upto = {}
  for s = 1, room.shards do
    local known, head = numbers_of(line['alive:' .. s]), tonumber(line['head:' .. s] or '0')
    local total, place = 0, head
    upto[s] = {}
    for i, cut in ipairs(cuts) do
      -- A cut that the shard has not counted yet: all of its tickets may be waiting.
      local counted = known[1] and known[2 + before + i - 1 - known[1]]
      total = counted or total + math.max(cut[s] - place, 0)
      place = math.max(cut[s], place)
      upto[s][i] = total
    end
  end
  return upto
end

-- Divide a number among the shards, as what each of them has; the shard that comes first is another each time.
local function divide(number, had, round)
  local parts, whole = {}, 0
  for s = 1, room.shards do
    whole = whole + had[s]
  end
  number = math.min(number, whole)
  local rest = number
  for turn = 1, room.shards do
    local s = (round + turn) % room.shards + 1
    parts[s] = math.min(math.ceil(number * had[s] / math.max(whole, 1)), had[s], rest)
    rest = rest - parts[s]
  end
  return parts
end

-- As many cuts as the budget reaches, and as every shard can get done in one call: one that stopped in the
-- middle would be overtaken by the others. The last of them is divided.
local function plan(cuts, upto, budget, round)
  local function total(i)
    local sum = 0
    for s = 1, room.shards do
      sum = sum + (upto[s][i] or 0)
    end
    return sum
  end
  local function done_at_once(i)
    for s = 1, room.shards do
      if upto[s][i] > steps then
        return false
      end
    end
    return true
  end
  local last = 0
  while budget > 0 and last < #cuts and total(last) < budget and (last == 0 or done_at_once(last + 1)) do
    last = last + 1
  end
  local grants, places, had = {}, {}, {}
  for s = 1, room.shards do
    had[s] = (upto[s][last] or 0) - (upto[s][last - 1] or 0)
  end
  local parts = divide(budget - total(last - 1), had, round)
  for s = 1, room.shards do
    grants[s] = math.min((upto[s][last - 1] or 0) + parts[s], steps)
    places[s] = cuts[last] and cuts[last][s] or 0
  end
  return grants, places
end

-- A room that draws: each shard's part is what waits there, of all who wait.
local function share(line, budget, round)
  local places, had = {}, {}
  for s = 1, room.shards do
    had[s], places[s] = math.min(tonumber(line['waiting:' .. s] or '0'), steps), 0
  end
  return divide(budget, had, round), places
end

local its = call('HMGET', p .. 'meta', 'round_open', 'round_from', 'server', 'drawing')
local round, open, from = room.round or 0, its[1] == '1', its[2]
local forgot = done > round or (done > 0 and done == round and done_from ~= from)
if forgot then
  note(p, us, 'what', 'forgot', 'round', round, 'done', done)
  for _, lane in ipairs(LANES) do
    -- Numbers that no cut has had: not even one that was forgotten, and is still known elsewhere.
    call('HINCRBY', p .. lane .. ':line', 'cuts_before', call('LLEN', p .. lane .. ':cuts') + done - round + 1)
  end
end
if open and not forgot then
  tell_again(p)
else
  local decides = server()
  local hears = forgot or its[3] ~= decides or its[4] == '1'
  round, from = math.max(round, done) + 1, text(us)
  call('HSET', p .. 'meta', 'round', round, 'round_open', 1, 'round_from', from, 'server', decides)
  for _, lane in ipairs(LANES) do
    local l, line, active = p .. lane .. ':', {}, 0
    local said = call('HGETALL', l .. 'line')
    for i = 1, #said, 2 do
      line[said[i]] = said[i + 1]
    end
    for s = 1, room.shards do
      active = active + tonumber(line['active:' .. s] or '0')
    end
    local budget = hears and 0 or budget_of(l, lane, active)
    local grants, places
    if room.mode == 'random' then
      grants, places = share(line, budget, round)
    else
      local cuts, before = cuts_of(l)
      grants, places = plan(cuts, waiting_upto(line, cuts, before), budget, round)
    end
    call('HSET', l .. 'line', 'grants', table.concat(grants, ' '), 'places', table.concat(places, ' '))
  end
end
local result = { round, from, room.version, room.phase, room.resetting == 1 and 1 or 0 }
for _, lane in ipairs(LANES) do
  local l = p .. lane .. ':'
  local its = call('HMGET', l .. 'line', 'grants', 'places', 'cuts_before')
  result[#result + 1] = { lane, its[1], its[2], tonumber(its[3] or '0'), call('LRANGE', l .. 'cuts', 0, AHEAD - 1) }
end
return result
