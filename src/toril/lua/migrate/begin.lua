#!lua
-- Begin to fill a queue from another one, or go on with it: who does so, what the queue takes over, and
-- counters beyond those of the old queue, so that ids do not meet and the old jobs of a priority come first.
-- keyspace: queue
-- keys: base meta
-- args: runner, source, whether the source was paused, lowest id from here on, the source's priority counter,
--       then fields and values of the source's meta
-- result: 1 where this is the beginning, 0 where it goes on
-- include: queue/_queue
-- include: migrate/_tracker

local q, runner, source, paused = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local lowest, counter = tonumber(ARGV[4]), tonumber(ARGV[5])
local facts = q .. 'toril:migration'
local known = call('HGET', facts, 'source')
if call('HGET', facts, 'phase') == 'rolling back' then
  return redis.error_reply('GOINGBACK a rollback of this queue is under way: let it end first')
end
if known and known ~= source then
  return redis.error_reply('OTHERSOURCE this queue is filled from ' .. known)
end
local time = call('TIME')
local first = known and 0 or 1
if first == 1 then
  call('HSET', facts, 'source', source, 'began', time[1], 'was_paused', paused)
  local count = call('ZCARD', q .. 'prioritized')
  local own = count <= MOST_OWN and call('ZRANGE', q .. 'prioritized', 0, -1) or {}
  for _, id in ipairs(own) do
    call('ZINCRBY', q .. 'prioritized', counter, id)
  end
  if counter > 0 then
    call('INCRBY', q .. 'pc', counter)
  end
end
call('HSET', facts, 'runner', runner, 'phase', 'copying')
call('PERSIST', q .. 'toril:migrated')
call('PERSIST', q .. 'toril:migrated-schedulers')
call('PERSIST', facts)
for at = 6, #ARGV, 2 do
  call('HSETNX', q .. 'meta', ARGV[at], ARGV[at + 1])
end
if tonumber(call('GET', q .. 'id') or '0') < lowest then
  call('SET', q .. 'id', string.format('%.0f', lowest))
end
return first
