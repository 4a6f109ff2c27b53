#!lua flags=allow-oom
-- Publish a snapshot of the whole room in one of its shards; an older one than is there is left out.
-- keyspace: room
-- keys: base meta
-- args: version, then fields and values in turn
-- result: the version that is there now
-- include: room/_room

local p, version = KEYS[1], tonumber(ARGV[1])
local there = tonumber(call('HGET', p .. 'snapshot', 'v') or '0')
if version <= there then
  return there
end
call('DEL', p .. 'snapshot')
call('HSET', p .. 'snapshot', 'v', version, unpack(ARGV, 2))
return version
