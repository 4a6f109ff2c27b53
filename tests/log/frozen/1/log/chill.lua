#!lua
-- Remember aggregates as cold.
-- keyspace: partition
-- keys: base head
-- args: aggregates
-- result: how many
-- include: log/_partition
-- include: log/_filter

for _, aggregate in ipairs(ARGV) do
  remember_cold(KEYS[1], aggregate)
end
return #ARGV
