#!lua flags=allow-oom
-- Break the link between a child and its parent.
-- keyspace: queue
-- keys: base meta
-- args: id, the parent's key
-- result: 0, 1 when there is no such link, or a code of a.9
-- include: queue/_queue
-- include: queue/_remove

local key, parent_key = KEYS[1] .. ARGV[1], ARGV[2]
if call('EXISTS', key) == 0 then
  return -1
end
if call('EXISTS', parent_key) == 0 then
  return -5
end
if leave_parent(key, parent_key, false) then
  call('HDEL', key, 'parentKey', 'parent')
  return 0
end
return 1
