#!lua
-- An aggregate comes over from the epoch before. Nothing leaves a partition while it is being carried into, so
-- what is not here has not been here; when that is over, all has come, and may have gone on and left again.
-- keyspace: partition
-- keys: base head
-- args: aggregate, when it was read or before (ms, by this server's clock), and its fields and values
-- result: 1 it is here, 0 it is not taken
-- include: log/_partition
-- include: log/_arrive

local p, aggregate, read_at = KEYS[1], ARGV[1], tonumber(ARGV[2])
if call('HEXISTS', p .. 'head', 'carry') == 0 or erased_since(p, aggregate, read_at) then
  return 0
end
if call('EXISTS', p .. 'a:' .. aggregate) == 0 then
  bring_in(p, aggregate, now_ms(), 3)
end
return 1
