#!lua flags=no-writes
-- How many seats there are.
-- keyspace: seats
-- keys: base head
-- args: -
-- result: total, available, held, sold, holds that have ended and were not swept yet, how often it changed
-- include: room/_seats

local n = call('HMGET', KEYS[2], 'total', 'available', 'held', 'sold', 'changes')
local ended = call('ZCOUNT', KEYS[1] .. 'due', '-inf', now_ms())
return { n[1] or '0', n[2] or '0', n[3] or '0', n[4] or '0', ended, n[5] or '0' }
