#!lua flags=allow-oom
-- An active job waits for its children.
-- keyspace: queue
-- keys: base meta
-- args: id, token, now, a child's key or '' for any
-- result: 0 moved, 1 nothing to wait for, or a code of a.9
-- include: queue/_queue
-- include: queue/_parent
-- include: queue/_remove
-- include: queue/_finish

local q, id, token, now, child = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key = q .. id
if call('EXISTS', key) == 0 then
  return -1
end
if call('ZCARD', key .. ':unsuccessful') ~= 0 then
  return -9
end
local pending
if child == '' then
  pending = call('SCARD', key .. ':dependencies') ~= 0
else
  pending = call('SISMEMBER', key .. ':dependencies', child) == 1
end
if not pending then
  return 1
end
local job = { id = id, key = key, lock = key .. ':lock', token = token }
look_at({ job })
local code = leave_active(q, job)
write_all(q)
if code < 0 then
  return code
end
call('ZADD', q .. 'waiting-children', now, id)
event(q, 'waiting-children', 'jobId', id, 'prev', 'active')
return 0
