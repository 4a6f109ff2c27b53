#!lua flags=allow-oom
-- Hear of people who wait: they keep their places. Says how each stands. It lets nobody in.
-- keyspace: room
-- keys: base meta
-- args: for each: lane, ticket, secret
-- result: version of the snapshot, then for each the ticket, or nil where it is not known
-- include: room/_room

local p = KEYS[1]
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local now = math.floor(now_us() / 1000)
local results = { call('HGET', p .. 'snapshot', 'v') or '0' }
local heard = {}
for i = 1, #ARGV, 3 do
  local lane, number, secret = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local found = call('HMGET', p .. lane .. ':' .. number .. ':ticket', 's', 'k', 'u', 'p', 'j', 'c')
  local said = false
  if found[2] == secret and found[1] == 'waiting' then -- nearly all who ask: said as `shown` says it
    said = { lane, number, 'waiting', secret, found[3], found[4] or '0', found[5], '0', '0', '0', '', now }
    if claims_end(room, found[6], now) then
      local l = p .. lane .. ':'
      said[#said + 1] = keys_of(l, ticket_of(l, number))
    end
    local own = heard[lane] or {}
    own[#own + 1], own[#own + 2], heard[lane] = now, number, own
  elseif found[2] == secret then
    said = shown(lane, owned(p, lane, room, number, secret, now), now, p .. lane .. ':', room)
  end
  results[#results + 1] = said
end
for lane, own in pairs(heard) do
  call('ZADD', p .. lane .. ':seen', 'XX', unpack(own)) -- all at once: half of what asking costs was this
end
return results
