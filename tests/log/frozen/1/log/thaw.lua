#!lua
-- A cold aggregate comes back, or one that the cold store does not know may begin.
-- keyspace: partition
-- keys: base head
-- args: aggregate, when it was found missing (ms), for how long what the cold store said then holds (ms),
--       and its fields and values (none: it does not exist)
-- result: 1 it is here, or the log goes on in a later epoch; 0 ask the cold store again
-- include: log/_partition
-- include: log/_arrive

local p, aggregate, asked, holds = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
if call('HEXISTS', p .. 'head', 'sealed') == 1 or call('EXISTS', p .. 'a:' .. aggregate) == 1 then
  return 1
end
if now - asked > holds or erased_since(p, aggregate, asked) then
  return 0
end
bring_in(p, aggregate, now, 4)
return 1
