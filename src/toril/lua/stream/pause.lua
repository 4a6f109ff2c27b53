#!lua flags=allow-oom
-- Let nobody take jobs, or let them again. What runs goes on, and what comes in waits.
-- keyspace: stream
-- keys: base meta
-- args: 1 to pause, 0 to go on
-- result: 1 where that changed something
-- include: stream/_stream

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local changed
if ARGV[1] == '1' then
  changed = call('HSETNX', META, 'paused', text(now))
else
  changed = call('HDEL', META, 'paused')
  rung = true
end
write_tallies()
return changed
