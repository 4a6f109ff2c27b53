#!lua
-- The least that a script with one key can do and still write.
-- keyspace: room
-- keys: meta
-- args: -
-- result: a number

return redis.call('HINCRBY', KEYS[1], 'bare', 1)
