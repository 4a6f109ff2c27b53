#!lua flags=no-writes
-- All that Redis has of an aggregate, where the log is in this epoch.
-- keyspace: partition
-- keys: base head
-- args: aggregate
-- result: its fields and values
-- include: log/_partition

if call('HEXISTS', KEYS[1] .. 'head', 'sealed') == 1 then
  return redis.error_reply('SEALED the log goes on in a later epoch')
end
return call('HGETALL', KEYS[1] .. 'a:' .. ARGV[1])
