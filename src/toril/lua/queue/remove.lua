#!lua flags=allow-oom
-- Remove a job that nobody works on, from whatever state it is in.
-- keyspace: queue
-- keys: base meta
-- args: id, 1 to remove its children too
-- result: 1, 0 when it (or a child) is locked, -8 when a scheduler needs it
-- include: queue/_queue
-- include: queue/_remove
-- include: queue/_family

local q, id, children = KEYS[1], ARGV[1], ARGV[2] == '1'
if is_scheduled(q, id) then
  return -8
end
if is_locked(q, id, children) then
  return 0
end
remove_family(q, id, nil, { children = children })
return 1
