#!lua
-- Count how often each call was executed.
-- keyspace: queue
-- keys: meta
-- args: the call's own id
-- result: how often it was executed, this time included
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
