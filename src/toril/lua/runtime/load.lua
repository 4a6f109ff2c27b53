#!lua flags=no-writes
-- How far a processor is with aggregates, and the states it has of them.
-- keyspace: partition
-- keys: base head
-- args: processor, aggregates
-- result: for each: {checkpoint or '', state or ''}; {'F ms'} where it is not here and was not at that time;
--         {'E ms'} the same, and its tenant is being erased, or was
-- include: log/_partition
-- include: log/_arrive

local p, processor, now, results = KEYS[1], ARGV[1], now_ms(), {}
for i = 2, #ARGV do
  local its = call('HMGET', p .. 'a:' .. ARGV[i], 'c:' .. processor, 's:' .. processor, 'v')
  if its[3] then
    results[#results + 1] = { its[1] or '', its[2] or '' }
  else
    results[#results + 1] = { (erased_since(p, ARGV[i], 0) and 'E ' or 'F ') .. now }
  end
end
return results
