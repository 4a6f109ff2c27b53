#!lua
-- Add ids to the waiting list.
-- keyspace: queue
-- keys: wait
-- args: ids
-- result: how many wait
return redis.call('LPUSH', KEYS[1], unpack(ARGV))
