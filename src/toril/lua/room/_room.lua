-- What every script of this room knows. `p` is the key prefix, `toril:{evt}:room:`; `l` is a lane's, with
-- `main:` or `vip:` after it.
--
-- A ticket is a number of its lane, given by the join. A place is a number in the order of admission: the same
-- as the ticket, but for those who came before the start of a room that shuffles them. A ticket's hash
-- (`<l><ticket>:ticket`) has these fields:
--   s   its state: waiting, ready (let in, has not entered yet), inside; or how it ended: left, abandoned,
--       lapsed (did not enter in time), expired (the session's time was over), revoked
--   k   the secret that its owner knows;  u  the user;  i  the idempotency key
--   m   how many more keys it was asked for with; m1, m2 … the first of them, which are remembered as long as it
--   c   in a room of several shards: until when its keys are claimed, each where it leads to (ms)
--   p   its place, once it has one
--   j   when it was given;  r  when it was let in;  n  when it entered;  e  until when it is let in (all ms)
--   x   by whom its admission was used
--
-- Every script names two keys: `base`, which never exists, and `meta`. While a cluster moves their slot, the
-- servers refuse calls of which some keys are missing, so no script meets half of a room.
-- include: room/_clock

local call = redis.call
local LANES = { 'vip', 'main' } -- in the order in which they are served
local STRETCH = 1024 -- places that are counted together, and have one bitmap
local KEPT = 5000 -- entries of the audit, about: each is of one step, with up to 200 tickets

local function text(number)
  return string.format('%.0f', number)
end

local SETTINGS = {
  'mode', 'phase', 'paused', 'patience', 'enter', 'session', 'remember', 'most', 'seed', 'resetting', 'interval',
  'opens', 'shards', 'version', 'round',
}

-- The settings, numbers as numbers; nil where the room was never made.
local function room_of(p)
  local found = call('HMGET', p .. 'meta', unpack(SETTINGS))
  if not found[1] then
    return nil
  end
  local room = {}
  for i, name in ipairs(SETTINGS) do
    room[name] = tonumber(found[i]) or found[i]
  end
  room.seed = found[9] -- all digits perhaps, and still a text
  return room
end

local NO_ROOM = 'NOROOM there is no such room'

local function stretch_of(place)
  return math.floor((place - 1) / STRETCH)
end

local FIELDS = { 's', 'k', 'u', 'i', 'p', 'j', 'r', 'e', 'n', 'x', 'm', 'c' }
local MORE_KEYS = 8

-- A ticket; nil where it is not known (any more).
local function ticket_of(l, number)
  local found = call('HMGET', l .. number .. ':ticket', unpack(FIELDS))
  if not found[1] then
    return nil
  end
  local its = { number = number }
  for i, name in ipairs(FIELDS) do
    its[name] = found[i] or nil
  end
  return its
end

-- All keys that a ticket was asked for with, and that are remembered for as long as it lives.
local function keys_of(l, its)
  local keys = { its.i ~= '' and its.i or nil }
  for i = 1, math.min(tonumber(its.m or '0'), MORE_KEYS) do
    keys[#keys + 1] = call('HGET', l .. its.number .. ':ticket', 'm' .. i)
  end
  return keys
end

-- Whether claims end so soon that the ticket could live on, with nothing heard of it until then.
local function claims_end(room, claimed, now)
  return claimed and claimed - now < room.patience + room.enter + room.session + room.remember
end

-- A ticket as its owner may see it; with `l`, also which of its keys have to be claimed anew.
local function shown(lane, its, now, l, room)
  return {
    lane, its.number, its.s, its.k, its.u, its.p or '0', its.j, its.r or '0', its.e or '0', its.n or '0',
    its.x or '', now, l and claims_end(room, its.c, now) and keys_of(l, its) or nil,
  }
end

-- The server that decides: another name with each that takes over, which may have forgotten something.
local function server()
  return string.match(call('INFO', 'replication'), 'master_replid:(%x+)')
end

-- Something is told that was done before. It is written down that it was, and nothing more: whoever waits until a
-- replica has this has waited for that, too.
local function tell_again(p)
  call('HINCRBY', p .. 'meta', 'told', 1)
end

-- Somebody waits at a place from now on, or no longer.
local function mark(l, place, waits)
  local stretch = stretch_of(place)
  call('SETBIT', l .. stretch .. ':alive', (place - 1) % STRETCH, waits and 1 or 0)
  if call('HINCRBY', l .. 'counts', stretch, waits and 1 or -1) == 0 then
    call('HDEL', l .. 'counts', stretch)
  end
end

-- Somebody waits at each of these places from now on.
local function mark_all(l, places)
  local bits = {}
  for _, place in ipairs(places) do
    local stretch = stretch_of(place)
    local its = bits[stretch]
    if not its then
      its = {}
      bits[stretch] = its
    end
    its[#its + 1] = 'SET'
    its[#its + 1] = 'u1'
    its[#its + 1] = (place - 1) % STRETCH
    its[#its + 1] = 1
  end
  for stretch, its in pairs(bits) do
    call('BITFIELD', l .. stretch .. ':alive', unpack(its))
    call('HINCRBY', l .. 'counts', stretch, #its / 4)
  end
end

-- A ticket waits no longer, whatever becomes of it.
local function stop_waiting(l, its)
  call('ZREM', l .. 'seen', its.number)
  call('HINCRBY', l .. 'line', 'waiting', -1)
  if its.p then
    mark(l, tonumber(its.p), false)
  end
end

-- A ticket ends. It is remembered for a while, and so is the key that it was asked for with.
local function finish(p, lane, room, its, state, now)
  local l = p .. lane .. ':'
  if its.s == 'waiting' then
    stop_waiting(l, its)
  else
    call('ZREM', l .. 'active', its.number)
  end
  its.s, its.e = state, text(now)
  call('HSET', l .. its.number .. ':ticket', 's', state, 'e', now)
  call('PEXPIRE', l .. its.number .. ':ticket', room.remember)
  call('HINCRBY', l .. 'line', state, 1)
  if its.u ~= '' and call('GET', p .. 'u:' .. its.u) == lane .. ' ' .. its.number then
    call('DEL', p .. 'u:' .. its.u)
  end
  for _, key in ipairs(keys_of(l, its)) do
    call('PEXPIRE', p .. 'i:' .. key, room.remember)
  end
end

-- An admission whose time is over ends, whoever notices first.
local function end_in_time(p, lane, room, its, now)
  if (its.s == 'ready' or its.s == 'inside') and tonumber(its.e) <= now then
    finish(p, lane, room, its, its.s == 'ready' and 'lapsed' or 'expired', now)
  end
end

-- Somebody who waits was heard of.
local function hear(l, its, now)
  call('ZADD', l .. 'seen', 'XX', 'GT', now, its.number)
end

-- A ticket of whoever knows its secret, as it is now; nil where there is none.
local function owned(p, lane, room, number, secret, now)
  local its = ticket_of(p .. lane .. ':', number)
  if not its or its.k ~= secret then
    return nil
  end
  end_in_time(p, lane, room, its, now)
  return its
end

-- Let somebody in: from now on the place inside is taken, and for a while it can be entered.
local function let_in(p, lane, room, its, now)
  local l = p .. lane .. ':'
  if its.s == 'waiting' then
    stop_waiting(l, its)
  end
  its.s, its.r, its.e = 'ready', now, now + room.enter
  call('HSET', l .. its.number .. ':ticket', 's', its.s, 'r', its.r, 'e', its.e)
  call('ZADD', l .. 'active', its.e, its.number)
end
