#!lua
-- Replace a job's data.
-- keyspace: queue
-- keys: base meta
-- args: id, data
-- result: 0, or -1 when there is no such job
-- include: queue/_queue

local key = KEYS[1] .. ARGV[1]
if call('EXISTS', key) == 0 then
  return -1
end
call('HSET', key, 'data', ARGV[2])
return 0
