#!lua flags=no-writes
-- All that Redis has of an aggregate, where the log is in this epoch.
-- keyspace: partition
-- keys: base head
-- args: aggregate [key]
-- result: its fields and values; with an idempotency key, its version and only what it has under that key
-- include: log/_partition

if call('HEXISTS', KEYS[1] .. 'head', 'sealed') == 1 then
  return redis.error_reply('SEALED the log goes on in a later epoch')
end
local aggregate = KEYS[1] .. 'a:' .. ARGV[1]
if not ARGV[2] then
  return call('HGETALL', aggregate)
end
local version = call('HGET', aggregate, 'v')
if not version then
  return {}
end
local record = call('HGET', aggregate, 'k:' .. ARGV[2])
if not record then
  return { 'v', version }
end
return { 'v', version, 'k:' .. ARGV[2], record, record, call('HGET', aggregate, record) }
