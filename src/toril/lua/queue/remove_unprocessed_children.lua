#!lua flags=allow-oom
-- Remove the children a job still waits for, except those that are being worked on.
-- keyspace: queue
-- keys: base meta
-- args: id
-- result: 0
-- include: queue/_queue
-- include: queue/_remove
-- include: queue/_family

remove_children(KEYS[1] .. ARGV[1], { children = true, unprocessed_only = true })
return 0
