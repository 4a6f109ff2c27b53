#!lua flags=allow-oom
-- Give a job another priority; one that waits changes its place.
-- keyspace: queue
-- keys: base meta
-- args: id, priority, 1 for lifo
-- result: 0, or -1 when there is no such job
-- include: queue/_queue

local q, id, priority, lifo = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
if call('EXISTS', q .. id) == 0 then
  return -1
end
local at = gate(q)
if call('ZREM', q .. 'prioritized', id) > 0 or call('LREM', at.list, -1, id) > 0 then
  if priority == 0 then
    push(q, at.list, at.blocked, id, lifo and 'RPUSH' or 'LPUSH')
  elseif lifo then
    push_back_by_priority(q, priority, id)
  else
    push_by_priority(q, priority, at.blocked, id)
  end
end
call('HSET', q .. id, 'priority', priority)
return 0
