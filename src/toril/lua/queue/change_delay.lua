#!lua flags=allow-oom
-- Let a delayed job run at another time.
-- keyspace: queue
-- keys: base meta
-- args: id, now, delay
-- result: 0, or a code of a.9
-- include: queue/_queue

local q, id, wait_ms = KEYS[1], ARGV[1], tonumber(ARGV[3])
if call('EXISTS', q .. id) == 0 then
  return -1
end
local score, due = delayed_score(q, tonumber(ARGV[2]), wait_ms)
if call('ZREM', q .. 'delayed', id) == 0 then
  return -3
end
call('HSET', q .. id, 'delay', wait_ms)
call('ZADD', q .. 'delayed', score, id)
event_and_trim(q, 'delayed', 'jobId', id, 'delay', due)
mark_delayed(q)
return 0
