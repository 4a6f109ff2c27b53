#!lua flags=allow-oom
-- Take a reader's floor away.
-- keyspace: partition
-- keys: base head
-- args: reader
-- result: 1 it is gone, 0 there was none
-- include: log/_partition

local p, name = KEYS[1], ARGV[1]
local gone = call('HDEL', p .. 'readers', name)
call('UNLINK', p .. 'e:' .. name)
if call('EXISTS', p .. 'entries') == 1 then
  call('XGROUP', 'DESTROY', p .. 'entries', name)
end
return gone
