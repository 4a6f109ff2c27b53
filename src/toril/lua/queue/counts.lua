#!lua flags=no-writes
-- How many jobs are in each state.
-- keyspace: queue
-- keys: base meta
-- args: states, as key suffixes
-- result: a number each
-- include: queue/_queue

local LISTS = { wait = true, paused = true, active = true }
local counts = {}
for place, state in ipairs(ARGV) do
  counts[place] = call(LISTS[state] and 'LLEN' or 'ZCARD', KEYS[1] .. state)
end
return counts
