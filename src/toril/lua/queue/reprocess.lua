#!lua flags=allow-oom
-- Run a finished job again.
-- keyspace: queue
-- keys: base meta
-- args: id, state it must be in (completed or failed), 1 for lifo
-- result: 1, or a code of a.9
-- include: queue/_queue

local q, id, state = KEYS[1], ARGV[1], ARGV[2]
local key = q .. id
if call('EXISTS', key) == 0 then
  return -1
end
if call('ZREM', q .. state, id) == 0 then
  return -3
end
call('HDEL', key, 'finishedOn', 'processedOn', state == 'failed' and 'failedReason' or 'returnvalue')
local at = gate(q)
push(q, at.list, at.blocked, id, ARGV[3] == '1' and 'RPUSH' or 'LPUSH')
local parent = call('HGET', key, 'parentKey')
if parent and call('EXISTS', parent) == 1 then
  local counted
  if state == 'failed' then
    counted = call('ZREM', parent .. ':unsuccessful', key) == 1 or call('HDEL', parent .. ':failed', key) == 1
  else
    counted = call('HDEL', parent .. ':processed', key) == 1
  end
  if counted then
    call('SADD', parent .. ':dependencies', key)
  end
end
event_and_trim(q, 'waiting', 'jobId', id, 'prev', state)
return 1
