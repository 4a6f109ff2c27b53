#!lua flags=allow-oom
-- Remove bodies outside the stream whose entries were erased.
-- keyspace: partition
-- keys: base head
-- args: bodies at most
-- result: how many
-- include: log/_partition

local p = KEYS[1]
local found = call('SPOP', p .. 'erasing', tonumber(ARGV[1]))
for _, ordinal in ipairs(found) do
  call('UNLINK', p .. 'b:' .. ordinal)
  call('ZREM', p .. 'blobs', ordinal)
end
return #found
