#!lua flags=allow-oom
-- Let a delayed job run now.
-- keyspace: queue
-- keys: base meta
-- args: id
-- result: 0, or -3 when it is not delayed
-- include: queue/_queue

local q, id = KEYS[1], ARGV[1]
if call('ZREM', q .. 'delayed', id) == 0 then
  return -3
end
local at = gate(q)
local priority = priority_of(q .. id)
if priority == 0 then
  push(q, at.list, at.blocked, id, 'LPUSH')
else
  push_by_priority(q, priority, at.blocked, id)
end
event(q, 'waiting', 'jobId', id, 'prev', 'delayed')
call('HSET', q .. id, 'delay', 0)
return 0
