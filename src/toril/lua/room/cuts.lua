#!lua flags=no-writes
-- The cuts of a lane, from one on.
-- keyspace: room
-- keys: base meta
-- args: lane, how many are known already
-- result: how many were before the first that is told, and those that follow
-- include: room/_room

local p, lane, known = KEYS[1], ARGV[1], tonumber(ARGV[2])
local l = p .. lane .. ':'
local before = tonumber(call('HGET', l .. 'line', 'cuts_before') or '0')
return { math.max(before, known), call('LRANGE', l .. 'cuts', math.max(known - before, 0), -1) }
