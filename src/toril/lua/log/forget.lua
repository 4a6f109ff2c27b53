#!lua flags=allow-oom
-- Remove aggregates of a tenant that is being erased, and what readers have parked of their events.
-- keyspace: partition
-- keys: base head
-- args: tenant, aggregates
-- result: how many were there
-- include: log/_partition

local p, prefix, gone = KEYS[1], ARGV[1] .. ':', 0
local readers = call('HKEYS', p .. 'readers')
for i = 2, #ARGV do
  local aggregate = ARGV[i]
  if string.sub(aggregate, 1, #prefix) == prefix then
    gone = gone + call('UNLINK', p .. 'a:' .. aggregate)
    call('ZREM', p .. 'activity', aggregate)
    for _, reader in ipairs(readers) do
      reader = string.gsub(reader, ':load$', '') -- what is being loaded may have parked some already
      if call('ZREM', p .. 'w:' .. reader, aggregate) == 1 then
        call('HDEL', p .. 'x:' .. reader, aggregate)
        call('UNLINK', p .. 'q:' .. reader .. ' ' .. aggregate)
      end
    end
  end
end
return gone
