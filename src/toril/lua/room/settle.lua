#!lua flags=allow-oom
-- End a round: what was let in is taken from the budget, the next cut is made, what is settled is dropped.
-- keyspace: room
-- keys: base meta
-- args: round, then for each lane: its name, how many cuts were before those that were counted, and for each
--       shard: let in, head, tickets, inside, waiting, number of cuts n, how many wait up to each
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

local function charge(l, lane, came, active)
  if came == 0 then
    return
  end
  local rate, burst, most = limits_of(p, lane)
  if room.mode == 'passthrough' then
    rate, burst, most = -1, -1, -1
  else
    -- As if all had come in just now. The refill since the round began counts from before that, and so the
    -- sum over any time is what one bucket would give, however long the round took.
    keep_level(l, level_at(l, rate, burst, us) - came * UNIT, us)
  end
  note(p, us, 'what', 'round', 'round', round, 'from', from, 'lane', lane, 'came', came, 'mode', room.mode,
    'rate', rate, 'burst', burst, 'active', active, 'max', most)
end

local function cut(l, lane, issued, heads)
  local before = numbers_of(call('LINDEX', l .. 'cuts', -1))
  for s, tickets in ipairs(issued) do
    if tickets > (before[s] or heads[s]) then
      call('RPUSH', l .. 'cuts', table.concat(issued, ' '))
      note(p, us, 'what', 'cut', 'lane', lane, 'round', round, 'places', table.concat(issued, ' '))
      break
    end
  end
end

local function drop_cuts(l, heads)
  local first = numbers_of(call('LINDEX', l .. 'cuts', 0))
  while #first > 0 do
    for s, place in ipairs(first) do
      if place > heads[s] then
        return
      end
    end
    call('LPOP', l .. 'cuts')
    call('HINCRBY', l .. 'line', 'cuts_before', 1)
    first = numbers_of(call('LINDEX', l .. 'cuts', 0))
  end
end

local at = 2
while at <= #ARGV and ends do
  local lane, before = ARGV[at], ARGV[at + 1]
  local l = p .. lane .. ':'
  local came, active, issued, heads = 0, 0, {}, {}
  at = at + 2
  for s = 1, room.shards do
    came = came + ARGV[at]
    heads[s], issued[s] = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    active = active + ARGV[at + 3]
    local alive, n = { before }, tonumber(ARGV[at + 5])
    for i = 1, n do
      alive[i + 1] = ARGV[at + 5 + i]
    end
    call('HSET', l .. 'line', 'head:' .. s, heads[s], 'active:' .. s, ARGV[at + 3], 'waiting:' .. s, ARGV[at + 4],
      'alive:' .. s, table.concat(alive, ' '))
    at = at + 6 + n
  end
  charge(l, lane, came, active)
  if room.phase == 'open' then
    cut(l, lane, issued, heads)
  end
  drop_cuts(l, heads)
end
if ends then
  call('HSET', p .. 'meta', 'round_open', 0)
end
local result = { text(math.floor(us / 1000)), room.mode, room.paused, room.patience }
for _, lane in ipairs(LANES) do
  local l = p .. lane .. ':'
  result[#result + 1] = { lane, (call('HGET', l .. 'line', 'cuts_before') or 0) + call('LLEN', l .. 'cuts') }
end
return result
