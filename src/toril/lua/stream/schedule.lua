#!lua
-- Set a schedule, or end it.
-- keyspace: stream
-- keys: base meta
-- args: schedule, when it is due in ms (0 to end it), what it adds and when, as JSON
-- result: 1 where it is new, or was there to be ended
-- include: stream/_stream

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
if ARGV[2] == '0' then
  call('ZREM', p .. 'schedules', ARGV[1])
  return call('HDEL', p .. 'plans', ARGV[1])
end
local is_new = call('HSET', p .. 'plans', ARGV[1], ARGV[3])
call('ZADD', p .. 'schedules', ARGV[2], ARGV[1])
rung = true -- whoever waits, may have to wait less
write_tallies()
return is_new
