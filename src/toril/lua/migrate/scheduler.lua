#!lua
-- Let a job scheduler of another queue arrive, once. One that is here already stays as it is.
-- keyspace: queue
-- keys: base meta
-- args: runner, id, when it is due next, then fields and values
-- result: 1 it has arrived, 0 it had arrived before, 2 there is one here
-- include: queue/_queue
-- include: migrate/_tracker

local q, id = KEYS[1], ARGV[2]
local refused = superseded(q, ARGV[1])
if refused then
  return refused
end
if call('HEXISTS', q .. 'toril:migrated-schedulers', id) == 1 then
  return 0
end
if call('ZSCORE', q .. 'repeat', id) then
  call('HSET', q .. 'toril:migrated-schedulers', id, 'here')
  return 2
end
call('ZADD', q .. 'repeat', ARGV[3], id)
if #ARGV > 3 then
  call('HSET', q .. 'repeat:' .. id, unpack(ARGV, 4))
end
call('HSET', q .. 'toril:migrated-schedulers', id, ARGV[3])
return 1
