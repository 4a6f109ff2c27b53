#!lua flags=allow-oom
-- Use an admission, once. Whoever used it may ask again, and is told the same: an answer may have been lost.
-- keyspace: room
-- keys: base meta
-- args: lane, ticket, who uses it, the second at which it was entered or ''
-- result: the ticket as it is now (used by whom, if by anyone), or nil where it is not known
-- include: room/_room

local p, lane, number, by, entered = KEYS[1], unpack(ARGV)
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local now = math.floor(now_us() / 1000)
local its = ticket_of(p .. lane .. ':', number)
-- Another entered then: a server forgot that one, and this one has its number.
if not its or (entered ~= '' and math.floor((its.n or 0) / 1000) ~= tonumber(entered)) then
  return false
end
end_in_time(p, lane, room, its, now)
if its.s == 'inside' and not its.x then
  its.x = by
  call('HSET', p .. lane .. ':' .. number .. ':ticket', 'x', by)
else
  tell_again(p)
end
return shown(lane, its, now)
