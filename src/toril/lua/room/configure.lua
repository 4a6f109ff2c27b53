#!lua
-- Make a room, or change its settings. What its budgets hold is counted with the old ones first.
-- keyspace: room
-- keys: base meta
-- args: 'create', 'change', or 'put' into a shard; a version that is to be outdone, or of what is put; the phase of
--       what is put; then fields of the settings and their values in turn
-- result: the version it has now; 0 where there is already one to create, or none to change
-- include: room/_room
-- include: room/_line
-- include: room/_budget

local p, how, version, phase = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local there = call('EXISTS', p .. 'meta') == 1
local had = tonumber(call('HGET', p .. 'meta', 'version') or '0')
local us = now_us()
if how == 'put' and version <= had then
  return had
elseif how ~= 'put' then
  if there == (how == 'create') then
    return 0
  end
  -- A time, so that a version is not given again where a server forgot that it was.
  version = math.max(version, had, us - 1) + 1
end
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
call('HSET', p .. 'meta', 'version', text(version), unpack(ARGV, 4))
if how == 'put' then
  call('HSETNX', p .. 'meta', 'phase', phase) -- a shard that has one goes its own way
  return version
end
if not there then
  call('HSET', p .. 'meta', 'server', server())
end
local said = { 'what', how }
for i = 4, #ARGV, 2 do
  if ARGV[i] ~= 'seed' then -- it is told when the room starts
    said[#said + 1], said[#said + 2] = ARGV[i], ARGV[i + 1]
  end
end
note(p, us, unpack(said))
return version
