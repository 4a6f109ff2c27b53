#!lua
-- Take tickets, one after another; whoever has one gets the same again.
-- keyspace: room
-- keys: base meta
-- args: for each: lane, secret for a new ticket, user or '', idempotency key or '', fingerprint of what was asked,
--       for how long the key is claimed elsewhere (ms), or 0
-- result: for each: 1 for a new ticket or 0, then the ticket as its owner sees it; or why there is none
-- include: room/_room

local p = KEYS[1]
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local now = math.floor(now_us() / 1000)

-- What a lane's line is, with those who have just joined; it is written when all have.
local lines = {}
local function line_at(l)
  local line = lines[l]
  if not line then
    local found = call('HMGET', l .. 'line', 'issued', 'waiting')
    line = { issued = tonumber(found[1] or '0'), waiting = tonumber(found[2] or '0'), seen = {}, places = {} }
    lines[l] = line
  end
  return line
end

local function write_line(l, line)
  call('HSET', l .. 'line', 'issued', text(line.issued), 'waiting', text(line.waiting))
  if #line.seen > 0 then
    call('ZADD', l .. 'seen', unpack(line.seen))
  end
  mark_all(l, line.places)
end

local function join(lane, secret, user, key, fingerprint, claimed)
  local l = p .. lane .. ':'
  if key ~= '' then
    local owner, number, asked = string.match(call('GET', p .. 'i:' .. key) or '', '^(%S+) (%d+) (.*)$')
    if owner and asked ~= fingerprint then
      return 'CONFLICT this idempotency key was used for another request'
    end
    local its = owner and ticket_of(p .. owner .. ':', number)
    if its then
      end_in_time(p, owner, room, its, now)
      tell_again(p)
      return { 0, shown(owner, its, now) }
    end
  end
  if user ~= '' then
    local owner, number = string.match(call('GET', p .. 'u:' .. user) or '', '^(%S+) (%d+)$')
    local its = owner and ticket_of(p .. owner .. ':', number)
    if its then
      end_in_time(p, owner, room, its, now)
      if its.s == 'waiting' or its.s == 'ready' or its.s == 'inside' then
        if its.s == 'waiting' then
          hear(p .. owner .. ':', its, now)
        end
        if key ~= '' then -- one more key for this ticket
          local hash = p .. owner .. ':' .. number .. ':ticket'
          local more = call('HINCRBY', hash, 'm', 1)
          call('SET', p .. 'i:' .. key, owner .. ' ' .. number .. ' ' .. fingerprint)
          if more <= MORE_KEYS then
            call('HSET', hash, 'm' .. more, key)
            if claimed ~= '0' then
              call('HSETNX', hash, 'c', now + claimed)
            end
          else -- somebody makes up a new one each time: the user is what leads to the ticket after a while
            call('PEXPIRE', p .. 'i:' .. key, room.remember)
          end
        end
        tell_again(p)
        return { 0, shown(owner, its, now) }
      end
    end
  end
  if room.resetting == 1 or room.mode == 'reject' then
    call('HINCRBY', p .. 'meta', 'refused', 1)
    return 'CLOSED the room takes nobody now'
  end
  if lane == 'vip' and (call('HGET', p .. 'meta', 'vip:rate') or '') == '' then
    return 'NOLANE this room has no lane for those who are sent past the line'
  end
  local line = line_at(l)
  if room.most > 0 and line.waiting >= room.most and room.mode ~= 'passthrough' then
    call('HINCRBY', p .. 'meta', 'refused', 1)
    return 'FULL ' .. room.most .. ' are waiting, and more may not'
  end

  line.issued = line.issued + 1
  local number = text(line.issued)
  local its = { number = number, s = 'waiting', k = secret, u = user, i = key, j = now }
  local hash = l .. number .. ':ticket'
  if room.mode == 'passthrough' and room.shards == 1 then -- with several, the next round lets everybody in
    call('HSET', hash, 'k', secret, 'u', user, 'i', key, 'j', now, 'p', number)
    call('HINCRBY', l .. 'line', 'admitted', 1)
    call('HINCRBY', l .. 'line', 'waited:1', 1)
    its.s, its.p = 'passing', number
    let_in(p, lane, room, its, now)
  else
    line.waiting = line.waiting + 1
    line.seen[#line.seen + 1] = now
    line.seen[#line.seen + 1] = number
    if room.phase == 'gathering' then
      call('HSET', hash, 's', 'waiting', 'k', secret, 'u', user, 'i', key, 'j', now)
    else
      its.p = number
      call('HSET', hash, 's', 'waiting', 'k', secret, 'u', user, 'i', key, 'j', now, 'p', number)
      line.places[#line.places + 1] = line.issued
    end
  end
  if user ~= '' then
    call('SET', p .. 'u:' .. user, lane .. ' ' .. number)
  end
  if key ~= '' then
    call('SET', p .. 'i:' .. key, lane .. ' ' .. number .. ' ' .. fingerprint)
    if claimed ~= '0' then
      call('HSET', hash, 'c', now + claimed)
    end
  end
  return { 1, shown(lane, its, now) }
end

local results = {}
for i = 1, #ARGV, 6 do
  results[#results + 1] = join(unpack(ARGV, i, i + 5))
end
for l, line in pairs(lines) do
  write_line(l, line)
end
return results
