#!lua
-- Make a room, or change its settings. What its budgets hold is counted with the old ones first.
-- keyspace: room
-- keys: base meta
-- args: 'create', 'change', or 'put' into a shard, with the version and the phase of the room, unless it has that
--       version; then fields of the settings and their values in turn
-- result: 1, or 0 where there is already one to create, none to change, or nothing new to put
-- include: room/_room
-- include: room/_line
-- include: room/_budget

local p, how = KEYS[1], ARGV[1]
local there = call('EXISTS', p .. 'meta') == 1
if how ~= 'put' then
  if there == (how == 'create') then
    return 0
  end
  call('HINCRBY', p .. 'meta', 'version', 1)
elseif tonumber(ARGV[2]) <= tonumber(call('HGET', p .. 'meta', 'version') or '0') then
  return 0
end
local us = now_us()
if there then
  for _, lane in ipairs(LANES) do
    local l = p .. lane .. ':'
    local rate, burst = limits_of(p, lane)
    if call('HGET', p .. 'meta', lane .. ':rate') == '' then -- a lane that was closed begins anew
      call('HDEL', l .. 'line', 'level', 'at')
    else
      keep_level(l, level_at(l, rate, burst, us), us)
    end
  end
end
if how == 'put' then
  call('HSETNX', p .. 'meta', 'phase', ARGV[3]) -- a shard that has one goes its own way
  call('HSET', p .. 'meta', 'version', ARGV[2], unpack(ARGV, 4))
  return 1
end
call('HSET', p .. 'meta', unpack(ARGV, 2))
local said = { 'what', how }
for i = 2, #ARGV, 2 do
  if ARGV[i] ~= 'seed' then -- it is told when the room starts
    said[#said + 1], said[#said + 2] = ARGV[i], ARGV[i + 1]
  end
end
note(p, us, unpack(said))
return 1
