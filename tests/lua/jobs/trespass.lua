#!lua
-- Reach for a key that was not declared.
-- keyspace: queue
-- keys: wait
-- args: the other key
-- result: its value
return redis.call('GET', ARGV[1])
