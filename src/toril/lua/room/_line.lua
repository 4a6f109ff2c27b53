-- The line of a lane: who is next, and how people are let in, in order, in bounded steps.
--
-- `<l>line` is a hash: issued (tickets given), head (the last place that is settled: nobody waits there or
-- before it), waiting, admitted; first, sealed and placed (tickets after
-- the first and up to the sealed one are shuffled, and places up to the last have been written down);
-- level and at (the budget); observed, observed_at, observed_n (the rate at which people are let in);
-- draws; the number of tickets by how they ended; waited and waited:<s> (waiting times).

local BOUNDS = { 1, 5, 15, 60, 300, 900, 1800, 3600 } -- seconds; waiting times are counted up to each

local LINE = { 'issued', 'head', 'waiting', 'admitted', 'sealed', 'placed' }

local function line_of(l)
  local found = call('HMGET', l .. 'line', unpack(LINE))
  local line = {}
  for i, name in ipairs(LINE) do
    line[name] = tonumber(found[i] or '0')
  end
  -- Places are known up to here: while a shuffle is being written down, not all are.
  line.last = line.placed < line.sealed and line.placed or line.issued
  return line
end

-- The first place after another at which somebody waits, up to a last one; nil where there is none.
local function next_alive(l, place, last)
  local at = place + 1
  while at <= last do
    local stretch = stretch_of(at)
    if call('HEXISTS', l .. 'counts', stretch) == 1 then
      local bit = call('BITPOS', l .. stretch .. ':alive', 1, (at - 1) % STRETCH, STRETCH - 1, 'BIT')
      if bit >= 0 then
        local found = stretch * STRETCH + bit + 1
        return found <= last and found or nil
      end
    end
    at = (stretch + 1) * STRETCH + 1
  end
end

-- The ticket that has a place.
local function ticket_at(l, line, place)
  if place > line.sealed then
    return text(place)
  end
  local from = (place - 1) % STRETCH * 4
  local packed = call('GETRANGE', l .. stretch_of(place) .. ':order', from, from + 3)
  return text(struct.unpack('>I4', packed))
end

-- Places up to here are settled: what was known of their stretches is not needed any more.
local function move_head(l, line, place)
  if place <= line.head then
    return
  end
  for stretch = stretch_of(line.head + 1), stretch_of(place + 1) - 1 do
    call('UNLINK', l .. stretch .. ':alive', l .. stretch .. ':order')
    call('HDEL', l .. 'counts', stretch)
  end
  line.head = place
  call('HSET', l .. 'line', 'head', place)
end

-- A number below n, drawn by the room's seed: whoever knows that can draw it again.
local function draw(l, room, n)
  local count = call('HINCRBY', l .. 'line', 'draws', 1)
  local hex = redis.sha1hex(room.seed .. ' ' .. count)
  return tonumber(string.sub(hex, 1, 12), 16) % n -- 48 bits: uneven by less than one in a million million
end

local function note_wait(l, waited_ms)
  call('HINCRBY', l .. 'line', 'waited', waited_ms)
  for _, bound in ipairs(BOUNDS) do
    if waited_ms <= bound * 1000 then
      call('HINCRBY', l .. 'line', 'waited:' .. bound, 1)
      return
    end
  end
end

-- Whoever is next, and the place; nil where nobody is. A room that draws does so among all who wait.
local function next_one(l, room, line, upto)
  if room.mode ~= 'random' then
    local place = next_alive(l, line.head, upto)
    return place and ticket_at(l, line, place), place
  end
  local waiting = call('ZCARD', l .. 'seen')
  if waiting > 0 then
    local rank = draw(l, room, waiting)
    return call('ZRANGE', l .. 'seen', rank, rank)[1]
  end
end

-- Let the next ones in, at most `want`, up to a place; ghosts that stand before them are dropped. Says how many
-- came in, and in what order: 'place:ticket:joined', and how many ghosts there were.
local function serve(p, lane, room, line, want, upto, now, steps)
  local l = p .. lane .. ':'
  local came, ghosts = {}, {}
  while #came < want and #came + #ghosts < steps do
    local number, place = next_one(l, room, line, upto)
    if not number then
      break
    end
    local its = ticket_of(l, number)
    local seen = tonumber(call('ZSCORE', l .. 'seen', number))
    if now - seen > room.patience then
      ghosts[#ghosts + 1] = number .. ':' .. text(seen)
      finish(p, lane, room, its, 'abandoned', now)
    else
      let_in(p, lane, room, its, now)
      came[#came + 1] = (its.p or '0') .. ':' .. number .. ':' .. its.j
      note_wait(l, now - its.j)
    end
    if place then
      move_head(l, line, place)
    end
  end
  if #came > 0 then
    call('HINCRBY', l .. 'line', 'admitted', #came)
    line.admitted = line.admitted + #came
  end
  local following = next_alive(l, line.head, line.last)
  move_head(l, line, following and following - 1 or line.last)
  return came, ghosts
end

-- Admissions whose time is over end, and ghosts are dropped, wherever they stand.
local function tidy(p, lane, room, now, most)
  local l = p .. lane .. ':'
  local over = call('ZRANGEBYSCORE', l .. 'active', '-inf', now, 'LIMIT', 0, most)
  for _, number in ipairs(over) do
    end_in_time(p, lane, room, ticket_of(l, number), now)
  end
  local before = '(' .. text(now - room.patience)
  local gone = call('ZRANGEBYSCORE', l .. 'seen', '-inf', before, 'WITHSCORES', 'LIMIT', 0, most)
  local ghosts = {}
  for i = 1, #gone, 2 do
    finish(p, lane, room, ticket_of(l, gone[i]), 'abandoned', now)
    ghosts[#ghosts + 1] = gone[i] .. ':' .. gone[i + 1]
  end
  return #over, ghosts
end

local function active_of(l, now)
  return call('ZCOUNT', l .. 'active', '(' .. text(now), '+inf')
end

local function note(p, us, ...)
  call('XADD', p .. 'audit', 'MAXLEN', '~', KEPT, '*', 'us', text(us), ...)
end

local function note_ghosts(p, us, lane, room, ghosts)
  if #ghosts > 0 then
    note(p, us, 'what', 'abandoned', 'lane', lane, 'tickets', table.concat(ghosts, ' '), 'patience', room.patience)
  end
end
