#!lua flags=allow-oom
-- Open a room that gathers people; one that is open stays as it is.
-- keyspace: room
-- keys: base meta
-- args: none
-- result: the phase it is in now
-- include: room/_room
-- include: room/_line
-- include: room/_start

local p = KEYS[1]
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
if room.phase == 'gathering' then
  start(p, room, now_us())
end
return room.phase
