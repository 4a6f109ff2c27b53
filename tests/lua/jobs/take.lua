#!lua flags=allow-oom
-- Take one id out.
-- keyspace: queue
-- keys: wait
-- args: none
-- result: an id, or nil
return redis.call('RPOP', KEYS[1])
