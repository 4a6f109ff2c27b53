#!lua flags=allow-oom
-- Pause a queue for all workers, or let it go on (a.5). Lists are merged, so that jobs which a client of
-- another version left on the wrong side are not overwritten.
-- keyspace: queue
-- keys: base meta
-- args: paused or resumed
-- result: 0
-- include: queue/_queue

local q, pausing = KEYS[1], ARGV[1] == 'paused'
local from, to = q .. 'wait', q .. 'paused'
if not pausing then
  from, to = to, from
end
local has_jobs = call('EXISTS', from) == 1
if has_jobs then
  if call('EXISTS', to) == 1 then
    -- What is moved has waited longer: it goes to the end that is taken from.
    in_steps(call('LRANGE', from, 0, -1), function(...)
      call('RPUSH', to, ...)
    end)
    call('DEL', from)
  else
    call('RENAME', from, to)
  end
end
if pausing then
  call('HSET', q .. 'meta', 'paused', 1)
  call('DEL', q .. 'marker')
else
  local was_paused = call('HDEL', q .. 'meta', 'paused') == 1
  -- Jobs that a client of another version left in `wait` meanwhile count as well.
  if has_jobs or (was_paused and call('EXISTS', to) == 1) or call('ZCARD', q .. 'prioritized') > 0 then
    mark(q, false)
  else
    mark_delayed(q)
  end
end
event(q, ARGV[1])
return 0
