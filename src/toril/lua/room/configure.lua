#!lua
-- Make a room, or change its settings. What its budgets hold is counted with the old ones first.
-- keyspace: room
-- keys: base meta
-- args: 'create' or 'change', then fields of the settings and their values in turn
-- result: 1, or 0 where there is already one to create, or none to change
-- include: room/_room
-- include: room/_line
-- include: room/_budget

local p, how = KEYS[1], ARGV[1]
local there = call('EXISTS', p .. 'meta') == 1
if there == (how == 'create') then
  return 0
end
local us = now_us()
if there then
  for _, lane in ipairs(LANES) do
    local l = p .. lane .. ':'
    local rate, burst = limits_of(p, lane)
    keep_level(l, level_at(l, rate, burst, us), us)
  end
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
