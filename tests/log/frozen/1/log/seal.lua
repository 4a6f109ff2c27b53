#!lua flags=allow-oom
-- Append no more here: the log goes on in a new epoch.
-- keyspace: partition
-- keys: base head
-- args: the new epoch
-- result: the last ordinal
-- include: log/_partition

call('HSETNX', KEYS[1] .. 'head', 'sealed', ARGV[1])
return call('HGET', KEYS[1] .. 'head', 'ordinal') or '0'
