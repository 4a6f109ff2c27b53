#!lua flags=allow-oom
-- Remove all seats, holds and sales. Epochs go on, so that whoever held a seat before stays fenced.
-- keyspace: seats
-- keys: base head
-- args: -
-- result: how many seats there were
-- include: room/_seats

local b = KEYS[1]
local total = tonumber(call('HGET', KEYS[2], 'total') or 0)
-- The server frees them in the background, however many they are.
call('UNLINK', b .. 'seats', b .. 'holds', b .. 'due', b .. 'asked', b .. 'owners')
call('HDEL', KEYS[2], 'total', 'available', 'held', 'sold')
call('HINCRBY', KEYS[2], 'changes', 1)
return total
