#!lua
-- Note a job's progress, and tell.
-- keyspace: queue
-- keys: base meta
-- args: id, progress
-- result: 0, or -1 when there is no such job
-- include: queue/_queue

local q, id = KEYS[1], ARGV[1]
if call('EXISTS', q .. id) == 0 then
  return -1
end
call('HSET', q .. id, 'progress', ARGV[2])
event_and_trim(q, 'progress', 'jobId', id, 'data', ARGV[2])
return 0
