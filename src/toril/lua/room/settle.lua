#!lua flags=allow-oom
-- End a round: what was let in is taken from the budget, the next cut is made, what is settled is dropped.
-- keyspace: room
-- keys: base meta
-- args: round, whether a shard has yet to draw its order again, then for each lane: its name, how many cuts were
--       before those that were counted, and for each shard: let in, whether it forgot the round before, head,
--       tickets, inside, waiting, let in ever, number of cuts n, how many wait up to each
-- result: ms now, mode, whether it is paused, patience; then for each lane: its name, how many cuts there were
-- include: room/_room
-- include: room/_line
-- include: room/_budget
-- include: room/_round

local p, round = KEYS[1], tonumber(ARGV[1])
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local us = now_us()
local ends = room.round == round and call('HGET', p .. 'meta', 'round_open') == '1'
local from = call('HGET', p .. 'meta', 'round_from')

-- `late` are those who came in in rounds that the room forgot.
local function charge(l, lane, came, late, active)
  if came + late == 0 then
    return
  end
  local rate, burst, most = limits_of(p, lane)
  if room.mode == 'passthrough' then
    rate, burst, most = -1, -1, -1
  else
    -- As if all had come in just now. The refill since the round began counts from before that, and so the
    -- sum over any time is what one bucket would give, however long the round took.
    keep_level(l, level_at(l, rate, burst, us) - (came + late) * UNIT, us)
  end
  note(p, us, 'what', 'round', 'round', round, 'from', from, 'lane', lane, 'came', came, 'late', late, 'mode',
    room.mode, 'rate', rate, 'burst', burst, 'active', active, 'max', most)
end

-- The last cut that was made; whether it is among those to come.
local function last_cut(l)
  local last = call('LINDEX', l .. 'cuts', -1)
  return numbers_of(last or call('HGET', l .. 'line', 'cut')), last
end

-- A cut never goes back: where a shard forgot tickets, those who get their numbers stand where they stood.
local function cut(l, lane, issued, heads)
  local before, to_come = last_cut(l)
  local places, grows = {}, false
  for s, tickets in ipairs(issued) do
    grows = grows or tickets > (to_come and before[s] or heads[s])
    places[s] = math.max(tickets, before[s] or 0)
  end
  if grows then
    local said = table.concat(places, ' ')
    call('RPUSH', l .. 'cuts', said)
    note(p, us, 'what', 'cut', 'lane', lane, 'round', round, 'places', said)
  end
end

local function drop_cuts(l, issued, heads)
  local first = numbers_of(call('LINDEX', l .. 'cuts', 0))
  while #first > 0 do
    for s, place in ipairs(first) do
      if math.min(place, issued[s]) > heads[s] then
        return
      end
    end
    call('HSET', l .. 'line', 'cut', call('LPOP', l .. 'cuts'))
    call('HINCRBY', l .. 'line', 'cuts_before', 1)
    first = numbers_of(call('LINDEX', l .. 'cuts', 0))
  end
end

-- How many a shard has let in of whom the room knows nothing. Where it has never heard of the shard, these are
-- all, if rounds were forgotten; in the first round they came in without one, while everybody could.
local function late_of(l, s, came, admitted)
  local known = call('HGET', l .. 'line', 'admitted:' .. s) or (round > 1 and 0 or admitted - came)
  return math.max(admitted - came - known, 0)
end

local at = 3
while at <= #ARGV and ends do
  local lane, before = ARGV[at], ARGV[at + 1]
  local l = p .. lane .. ':'
  local came, late, active, issued, heads = 0, 0, 0, {}, {}
  at = at + 2
  for s = 1, room.shards do
    local own, forgot, head, tickets, inside, waiting, admitted, n = unpack(ARGV, at, at + 7)
    local alive = { before, unpack(ARGV, at + 8, at + 7 + n) }
    came, late = came + own, late + late_of(l, s, own, admitted)
    heads[s], issued[s], active = tonumber(head), tonumber(tickets), active + inside
    call('HSET', l .. 'line', 'head:' .. s, head, 'active:' .. s, inside, 'waiting:' .. s, waiting,
      'admitted:' .. s, admitted, 'alive:' .. s, table.concat(alive, ' '))
    if forgot == '1' then -- up to here, the order may have to be made up for
      local upto = last_cut(l)[s] or 0
      note(p, us, 'what', 'forgot', 'lane', lane, 'shard', s - 1, 'round', round, 'upto', upto)
    end
    at = at + 8 + n
  end
  charge(l, lane, came, late, active)
  if room.phase == 'open' then -- before that, not all who wait have a place
    cut(l, lane, issued, heads)
    drop_cuts(l, issued, heads)
  end
end
if ends then
  call('HSET', p .. 'meta', 'round_open', 0, 'drawing', ARGV[2])
end
local result = { text(math.floor(us / 1000)), room.mode, room.paused, room.patience }
for _, lane in ipairs(LANES) do
  local l = p .. lane .. ':'
  result[#result + 1] = { lane, (call('HGET', l .. 'line', 'cuts_before') or 0) + call('LLEN', l .. 'cuts') }
end
return result
