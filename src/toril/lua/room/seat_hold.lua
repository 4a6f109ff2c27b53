#!lua
-- Hold seats for an owner, all or none. The same key gets the same answer while the hold or the sale lasts.
-- A hold that has ended gives its seats back here, so that it is never in anyone's way.
-- keyspace: seats
-- keys: base head
-- args: owner, key, for how long (ms), seats of one owner at most (0: any), seat, seat …
-- result: 'ok' epoch state ends, 'unknown' seat …, 'taken' seat …, 'many' how many more the owner may have, 'other'
-- include: room/_seats

local b = KEYS[1]
local owner, key, lasts, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()

local function same(one, other)
  return table.concat(one, ' ') == table.concat(other, ' ')
end

local wanted = {}
for i = 5, #ARGV do
  wanted[i - 4] = ARGV[i]
end
local before = call('HGET', b .. 'asked', key)
if before then
  local its = hold_of(b, before)
  if its.state == 'h' and its.ends <= now then
    give_back(b, before, its)
  elseif its.owner == owner and same(its.seats, wanted) then
    return { 'ok', before, its.state, string.format('%.0f', its.ends) }
  else
    return { 'other' }
  end
end

local unknown, taken = { 'unknown' }, { 'taken' }
for _, seat in ipairs(wanted) do
  local state = call('HGET', b .. 'seats', seat)
  if not state then
    unknown[#unknown + 1] = seat
  elseif state ~= 'a' then
    local epoch = string.sub(state, 3)
    local its = hold_of(b, epoch)
    if its.state == 'h' and its.ends <= now then
      give_back(b, epoch, its)
    else
      taken[#taken + 1] = seat
    end
  end
end
if #unknown > 1 then
  return unknown
end
if #taken > 1 then
  return taken
end
if most > 0 then
  local left = most - tonumber(call('HGET', b .. 'owners', owner) or 0)
  if #wanted > left then
    return { 'many', string.format('%.0f', math.max(0, left)) }
  end
end

local epoch = string.format('%.0f', call('HINCRBY', KEYS[2], 'epoch', 1))
local its = { state = 'h', ends = now + lasts, owner = owner, key = key, seats = wanted }
save_hold(b, epoch, its)
call('ZADD', b .. 'due', its.ends, epoch)
call('HSET', b .. 'asked', key, epoch)
call('HINCRBY', b .. 'owners', owner, #wanted)
move(b, wanted, 'a', 'h', epoch)
return conserved(b, { 'ok', epoch, 'h', string.format('%.0f', its.ends) })
