#!lua flags=no-writes
-- How many jobs wait with each priority.
-- keyspace: queue
-- keys: base meta
-- args: priorities
-- result: a number each
-- include: queue/_queue

local q, counts = KEYS[1], {}
for place, text in ipairs(ARGV) do
  local priority = tonumber(text)
  if priority == 0 then
    counts[place] = call('LLEN', gate(q).list)
  else
    counts[place] =
      call('ZCOUNT', q .. 'prioritized', priority * PRIORITY_STEP, (priority + 1) * PRIORITY_STEP - 1)
  end
end
return counts
