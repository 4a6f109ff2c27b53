#!lua
-- Add seats. Those that are there already stay as they are.
-- keyspace: seats
-- keys: base head
-- args: seat, seat …
-- result: how many are new
-- include: room/_seats

local b, new = KEYS[1], 0
for _, seat in ipairs(ARGV) do
  new = new + call('HSETNX', b .. 'seats', seat, 'a')
end
for _, count in ipairs({ 'total', 'available', 'changes' }) do
  call('HINCRBY', KEYS[2], count, new)
end
return conserved(b, new)
