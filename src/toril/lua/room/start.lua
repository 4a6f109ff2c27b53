#!lua flags=allow-oom
-- Open a room that gathers people; one that is open stays as it is.
-- keyspace: room
-- keys: base meta
-- args: '' for a room of one shard, or a shard; for a room of several: 'begin', and 'end' when all is shuffled; then
--       the version that its settings must have, or ''
-- result: the phase it is in now
-- include: room/_room
-- include: room/_line
-- include: room/_start

local p = KEYS[1]
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local which, version = ARGV[1], ARGV[2]
if version ~= '' and room.version ~= tonumber(version) then
  return room.phase
end
if which == 'end' and room.phase == 'shuffling' then
  room.phase = 'open'
elseif which == 'begin' and room.phase == 'gathering' then
  room.phase = 'shuffling'
  note(p, now_us(), 'what', 'start', 'seed', room.seed)
elseif which == '' and room.phase == 'gathering' then
  start(p, room, now_us())
end
call('HSET', p .. 'meta', 'phase', room.phase)
return room.phase
