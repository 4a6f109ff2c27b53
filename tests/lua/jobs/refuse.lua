#!lua
-- include: jobs/shared
-- State an error of its own.
-- keyspace: queue
-- keys: wait
-- args: a code
-- result: never
return refuse(ARGV[1])
