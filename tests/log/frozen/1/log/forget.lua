#!lua flags=allow-oom
-- Remove aggregates of a tenant that is being erased.
-- keyspace: partition
-- keys: base head
-- args: tenant, aggregates
-- result: how many were there
-- include: log/_partition

local p, prefix, gone = KEYS[1], ARGV[1] .. ':', 0
for i = 2, #ARGV do
  if string.sub(ARGV[i], 1, #prefix) == prefix then
    gone = gone + call('UNLINK', p .. 'a:' .. ARGV[i])
    call('ZREM', p .. 'activity', ARGV[i])
  end
end
return gone
