#!lua flags=no-writes
-- Count what waits.
-- keyspace: queue
-- keys: wait
-- args: none
-- result: a number
return redis.call('LLEN', KEYS[1])
