#!lua flags=allow-oom
-- Give back the seats of holds that have ended, the oldest first.
-- keyspace: seats
-- keys: base head
-- args: holds at most
-- result: how many holds, how many seats
-- include: room/_seats

local b = KEYS[1]
local ended = call('ZRANGE', b .. 'due', '-inf', now_ms(), 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[1]))
local seats = 0
for _, epoch in ipairs(ended) do
  local its = hold_of(b, epoch)
  seats = seats + #its.seats
  give_back(b, epoch, its)
end
return conserved(b, { #ended, seats })
