#!lua flags=allow-oom
-- Do a shard's part of a round: let in so many, up to a place; drop ghosts; end what is over. A round is done
-- once; asked again, the shard says what it did, and how it stands now.
-- keyspace: room
-- keys: base meta
-- args: version of the settings, round, when it began, tickets handled at most, then for each lane: its name, how
--       many to let in, up to which place, number of cuts n, and the shard's places in them
-- result: its phase, whether it forgot the round before, then for each lane: its name, let in, ghosts, ended, head,
--         tickets, inside, waiting, let in ever, how many wait up to each cut, and three parts of the snapshot. A
--         shard with other settings: nil
-- include: room/_room
-- include: room/_line
-- include: room/_budget
-- include: room/_snapshot

local p, version, round, from, steps = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local room = room_of(p)
if not room or room.version ~= tonumber(version) then
  return false
end
local us = now_us()
local now = math.floor(us / 1000)
local last, last_from = room.round or 0, call('HGET', p .. 'meta', 'round_from') or from
if round < last or (round == last and from ~= last_from) then
  return redis.error_reply('OLDROUND ' .. last .. ' ' .. last_from .. ' is what this shard has done')
elseif round > last then
  call('HSET', p .. 'meta', 'round', round, 'round_from', from, 'round_forgot', last < round - 1 and 1 or 0)
end

local function done(lane, grant, upto)
  local l = p .. lane .. ':'
  local over, ghosts = tidy(p, lane, room, now, steps)
  local line = line_of(l)
  local came, met = {}, {}
  if room.phase ~= 'gathering' then
    upto = room.mode == 'random' and line.last or math.min(upto, line.last)
    came, met = serve(p, lane, room, line, grant, upto, now, steps)
  end
  for _, ghost in ipairs(met) do
    ghosts[#ghosts + 1] = ghost
  end
  note_ghosts(p, us, lane, room, ghosts)
  if #came > 0 then
    note(p, us, 'what', 'admitted', 'lane', lane, 'tickets', table.concat(came, ' '), 'mode', room.mode,
      'rate', -1, 'burst', -1, 'active', active_of(l, now), 'max', -1, 'round', round)
  end
  call('HSET', l .. 'line', 'done', #came .. ' ' .. #ghosts .. ' ' .. over)
end

-- How many wait up to each of some places, which grow.
local function waiting_upto(l, line, places)
  local result, total, stretch = {}, 0, stretch_of(line.head + 1)
  for i, place in ipairs(places) do
    result[i] = 0
    if place > line.head then
      while stretch < stretch_of(place) do
        total = total + (call('HGET', l .. 'counts', stretch) or 0)
        stretch = stretch + 1
      end
      result[i] = total + call('BITCOUNT', l .. stretch .. ':alive', 0, (place - 1) % STRETCH, 'BIT')
    end
  end
  return result
end

local results, at = { room.phase, tonumber(call('HGET', p .. 'meta', 'round_forgot') or '0') }, 5
while at <= #ARGV do
  local lane, grant, upto, n = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local places = {}
  for i = 1, n do
    places[i] = tonumber(ARGV[at + 3 + i])
  end
  at = at + 4 + n
  if round > last then
    done(lane, grant, upto)
  end
  local l = p .. lane .. ':'
  local line = line_of(l)
  local came, ghosts, over = string.match(call('HGET', l .. 'line', 'done') or '0 0 0', '(%d+) (%d+) (%d+)')
  results[#results + 1] = {
    lane, came, ghosts, over, text(line.head), text(line.last), active_of(l, now), line.waiting, line.admitted,
    waiting_upto(l, line, places), { snapshot_of(p, lane, now) },
  }
end
return results
