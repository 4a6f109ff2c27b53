#!lua flags=allow-oom
-- Read for a reader from now on: whoever did so before is fenced off.
-- keyspace: partition
-- keys: base head
-- args: reader
-- result: ordinal, id, fence
-- include: log/_partition
-- include: log/_readers

local p, name = KEYS[1], ARGV[1]
local its = reader_of(p, name)
if not its then
  return redis.error_reply('GONE this reader is not registered: it was retired, or silent for too long')
end
its.fence = its.fence + 1
save_reader(p, name, its)
return { text(its.ordinal), its.id, text(its.fence) }
