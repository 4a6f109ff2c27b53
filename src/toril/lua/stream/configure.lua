#!lua
-- Write down the options of a queue, or of one partition of it.
-- keyspace: stream
-- keys: base meta
-- args: fields and values
-- result: 1 where something was changed
-- include: stream/_stream

local changed = false
for at = 1, #ARGV, 2 do
  if call('HGET', META, ARGV[at]) ~= ARGV[at + 1] then
    call('HSET', META, ARGV[at], ARGV[at + 1])
    changed = true
  end
end
configured()
for level = 0, q.levels - 1 do
  make_group(stream_of(text(level)))
end
make_group(p .. 'bell')
make_group(p .. 'inlet')
return changed and 1 or 0
