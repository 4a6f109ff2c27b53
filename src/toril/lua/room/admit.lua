#!lua flags=allow-oom
-- Let people in, as many as the rate and the places inside allow; drop ghosts; publish the snapshot. Called more
-- often, it lets no more in. It does so much and no more at a time.
-- keyspace: room
-- keys: base meta
-- args: tickets handled at most, for each kind of step
-- result: let in, ghosts dropped, admissions ended, whether there is more to do at once, version of the snapshot,
--         phase, whether the room is being reset
-- include: room/_room
-- include: room/_line
-- include: room/_budget
-- include: room/_snapshot
-- include: room/_start

local p, steps = KEYS[1], tonumber(ARGV[1])
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local us = now_us()
local now = math.floor(us / 1000)
local total, ghosts_dropped, ended, more = 0, 0, 0, 0

if room.phase == 'gathering' and room.opens > 0 and now >= room.opens then
  start(p, room, us)
end

-- How many may come in now; the bucket as it is, where it counts.
local function allowed(l, lane)
  if room.phase == 'gathering' or room.paused == 1 or room.resetting == 1 or room.mode == 'reject' then
    return 0
  elseif room.mode == 'passthrough' then
    return steps
  end
  local rate, burst, most = limits_of(p, lane)
  local level = level_at(l, rate, burst, us)
  keep_level(l, level, us)
  local want = math.floor(level / UNIT)
  if most >= 0 then
    want = math.min(want, most - active_of(l, now))
  end
  return math.max(want, 0), level, rate, burst, most
end

for _, lane in ipairs(LANES) do
  local l = p .. lane .. ':'
  local over, ghosts = tidy(p, lane, room, now, steps)
  local want, level, rate, burst, most = allowed(l, lane)
  local line = line_of(l)
  local came, met = {}, {}
  if room.phase ~= 'gathering' then -- nobody has a place before that
    came, met = serve(p, lane, room, line, math.min(want, steps), line.last, now, steps)
  end
  if #came > 0 then
    if level then
      keep_level(l, level - #came * UNIT, us)
    end
    note(p, us, 'what', 'admitted', 'lane', lane, 'tickets', table.concat(came, ' '), 'mode', room.mode,
      'rate', rate or -1, 'burst', burst or -1, 'active', active_of(l, now), 'max', most or -1)
  end
  for _, ghost in ipairs(met) do
    ghosts[#ghosts + 1] = ghost
  end
  note_ghosts(p, us, lane, room, ghosts)
  total, ghosts_dropped, ended = total + #came, ghosts_dropped + #ghosts, ended + over
  if over >= steps or #ghosts >= steps or #came + #met >= steps then
    more = 1
  end
end

local published = tonumber(call('HGET', p .. 'snapshot', 'now') or '0')
local version = call('HGET', p .. 'snapshot', 'v')
if not version or now - published >= room.interval or now < published then
  version = publish(p, room, now)
end
return { total, ghosts_dropped, ended, more, tonumber(version), room.phase, room.resetting == 1 and 1 or 0 }
