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
for i = 1, #ARGV, 3 do
  local lane = ARGV[i]
  local its = owned(p, lane, room, ARGV[i + 1], ARGV[i + 2], now)
  if its and its.s == 'waiting' then
    hear(p .. lane .. ':', room, its, now)
  end
  results[#results + 1] = its and shown(lane, its, now) or false
end
return results
