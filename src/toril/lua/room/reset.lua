#!lua flags=allow-oom
-- Send everybody away, a few at a time; nobody can join meanwhile. Tickets go on from the number they are at.
-- keyspace: room
-- keys: base meta
-- args: tickets at most, the phase it begins with again, seed and commitment of the next shuffle
-- result: tickets that were ended; 0: done
-- include: room/_room
-- include: room/_line

local p, most, phase, seed, commitment = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local room = room_of(p)
if not room then
  return redis.error_reply(NO_ROOM)
end
local us = now_us()
local now = math.floor(us / 1000)
if room.resetting ~= 1 then
  call('HSET', p .. 'meta', 'resetting', 1)
  note(p, us, 'what', 'reset')
end
local ended = 0
for _, lane in ipairs(LANES) do
  local l = p .. lane .. ':'
  for _, set in ipairs({ 'seen', 'active' }) do
    for _, number in ipairs(call('ZRANGE', l .. set, 0, most - ended - 1)) do
      if ended < most then
        finish(p, lane, room, ticket_of(l, number), 'revoked', now)
        ended = ended + 1
      end
    end
  end
end
if ended > 0 then
  return ended
end
for _, lane in ipairs(LANES) do
  local l = p .. lane .. ':'
  local line = line_of(l)
  call('HSET', l .. 'line', 'sealed', 0, 'placed', 0)
  move_head(l, line, line.issued)
end
call('HSET', p .. 'meta', 'resetting', 0, 'phase', phase, 'seed', seed, 'commitment', commitment)
note(p, us, 'what', 'again', 'commitment', commitment, 'phase', phase)
return 0
