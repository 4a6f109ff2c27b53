#!lua flags=allow-oom
-- Move one id from waiting to active: finishing may write, also above maxmemory.
-- keyspace: queue
-- keys: wait active
-- args: none
-- result: an id, or nil
return redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
