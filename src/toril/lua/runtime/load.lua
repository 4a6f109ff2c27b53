#!lua flags=no-writes
-- How far a processor is with aggregates, and the states it has of them.
-- keyspace: partition
-- keys: base head
-- args: processor, aggregates
-- result: for each: {checkpoint or '', state or ''}
-- include: log/_partition

local p, processor, results = KEYS[1], ARGV[1], {}
for i = 2, #ARGV do
  local its = call('HMGET', p .. 'a:' .. ARGV[i], 'c:' .. processor, 's:' .. processor)
  results[#results + 1] = { its[1] or '', its[2] or '' }
end
return results
