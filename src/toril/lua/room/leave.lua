#!lua flags=allow-oom
-- Give a ticket back, from wherever it is.
-- keyspace: room
-- keys: base meta
-- args: lane, ticket, its owner's secret (or '' where an operator takes it away), how it ends: left or revoked
-- result: the ticket as it is now, or nil where it is not known
-- include: room/_room

local p, lane, number, secret, how = KEYS[1], unpack(ARGV)
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local now = math.floor(now_us() / 1000)
local its = ticket_of(p .. lane .. ':', number)
if not its or (how ~= 'revoked' and its.k ~= secret) then
  return false
end
end_in_time(p, lane, room, its, now)
if its.s == 'waiting' or its.s == 'ready' or its.s == 'inside' then
  finish(p, lane, room, its, how, now)
else
  tell_again(p)
end
return shown(lane, its, now)
