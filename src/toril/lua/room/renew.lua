#!lua flags=allow-oom
-- Stay inside for another session's time, where one is inside.
-- keyspace: room
-- keys: base meta
-- args: lane, ticket, secret
-- result: the ticket as it is now, or nil where it is not known
-- include: room/_room

local p, lane, number, secret = KEYS[1], unpack(ARGV)
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local now = math.floor(now_us() / 1000)
local its = owned(p, lane, room, number, secret, now)
if its and its.s == 'inside' then
  its.e = now + room.session
  call('HSET', p .. lane .. ':' .. number .. ':ticket', 'e', its.e)
  call('ZADD', p .. lane .. ':active', its.e, number)
end
return its and shown(lane, its, now, p .. lane .. ':', room) or false
