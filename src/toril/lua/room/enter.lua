#!lua flags=allow-oom
-- Enter, where one was let in. Asked again, it says the same: an answer may have been lost.
-- keyspace: room
-- keys: base meta
-- args: lane, ticket, secret
-- result: the ticket as it is now, or nil where it is not known
-- include: room/_room

local p, lane, number, secret = KEYS[1], unpack(ARGV)
local l = p .. lane .. ':'
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local now = math.floor(now_us() / 1000)
local its = owned(p, lane, room, number, secret, now)
if not its then
  return false
end
if its.s == 'ready' then
  its.s, its.n, its.e = 'inside', now, now + room.session
  call('HSET', l .. number .. ':ticket', 's', its.s, 'n', its.n, 'e', its.e)
  call('ZADD', l .. 'active', its.e, number)
elseif its.s == 'waiting' then
  hear(l, its, now)
else
  tell_again(p)
end
return shown(lane, its, now, l, room)
