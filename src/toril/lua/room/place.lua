#!lua flags=allow-oom
-- Write down a part of the shuffled order: which tickets have the next places, all of them in one stretch.
-- keyspace: room
-- keys: base meta
-- args: lane, places that are written down already, the tickets that follow, four bytes each
-- result: places that are written down now, places there are
-- include: room/_room
-- include: room/_line

local p, lane, from, packed = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local l = p .. lane .. ':'
local line = line_of(l)
if line.placed ~= from then -- somebody else was faster
  return { line.placed, line.sealed }
end
local stretch, count = stretch_of(from + 1), #packed / 4
if from + count > line.sealed or stretch_of(from + count) ~= stretch then
  return redis.error_reply('BADORDER ' .. count .. ' tickets do not fit after place ' .. from)
end
local bits, waiting = l .. stretch .. ':alive', 0
for i = 1, count do
  local place = from + i
  local hash = l .. text(struct.unpack('>I4', packed, i * 4 - 3)) .. ':ticket'
  local its = call('HMGET', hash, 's', 'p')
  if its[2] then
    return redis.error_reply('BADORDER a ticket has two places: ' .. its[2] .. ' and ' .. place)
  end
  if its[1] == 'waiting' then
    call('HSET', hash, 'p', place)
    call('SETBIT', bits, (place - 1) % STRETCH, 1)
    waiting = waiting + 1
  end
end
if waiting > 0 then
  call('HINCRBY', l .. 'counts', stretch, waiting)
end
call('SETRANGE', l .. stretch .. ':order', (from % STRETCH) * 4, packed)
call('HSET', l .. 'line', 'placed', from + count)
line.placed = from + count
if line.placed == line.sealed then
  local open = true
  for _, other in ipairs(LANES) do
    local its = line_of(p .. other .. ':')
    open = open and its.placed == its.sealed
  end
  if open then
    call('HSET', p .. 'meta', 'phase', 'open')
  end
end
return { line.placed, line.sealed }
