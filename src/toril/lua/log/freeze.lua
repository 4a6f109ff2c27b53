#!lua flags=allow-oom
-- Aggregates that the cold store has now leave Redis, where nothing has changed them since.
-- keyspace: partition
-- keys: base head
-- args: the word of their journey; then for each: aggregate, its count of changes when it was read
-- result: for each: 1 it is gone, 0 it stays
-- include: log/_partition
-- include: log/_filter

local p, results = KEYS[1], {}
local head = call('HMGET', p .. 'head', 'sealed', 'carry')
for i = 2, #ARGV, 2 do
  local aggregate, key = ARGV[i], p .. 'a:' .. ARGV[i]
  local its = call('HMGET', key, 'v', 'c')
  local same = its[1] and (its[2] or '0') == ARGV[i + 1] and not head[1] and not head[2]
  if same then
    if its[1] ~= '0' then
      remember_cold(p, aggregate)
    end
    call('UNLINK', key)
    call('ZREM', p .. 'activity', aggregate)
  end
  results[#results + 1] = same and 1 or 0
end
call('ZREM', p .. 'leaving', ARGV[1])
return results
