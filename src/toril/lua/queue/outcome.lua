#!lua flags=no-writes
-- How a job ended, if it has.
-- keyspace: queue
-- keys: base meta
-- args: id
-- result: {0}, {1, return value}, {2, reason}, or {-1} when there is no such job
-- include: queue/_queue

local q, id = KEYS[1], ARGV[1]
if call('EXISTS', q .. id) == 0 then
  return { -1 }
end
if call('ZSCORE', q .. 'completed', id) then
  return { 1, call('HGET', q .. id, 'returnvalue') }
end
if call('ZSCORE', q .. 'failed', id) then
  return { 2, call('HGET', q .. id, 'failedReason') }
end
return { 0 }
