#!lua flags=allow-oom
-- A schedule is due: add its job, unless somebody has, and say when it is due next.
-- keyspace: stream
-- keys: base meta
-- args: schedule, when it was due in ms, when it is due next in ms (0 for never), name, data, options, order key,
--       tenant, level
-- result: the job's id; '' where somebody was faster; '!' where the backlog is full, and this one falls out
-- include: stream/_stream

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local schedule, due = ARGV[1], ARGV[2]
if tonumber(call('ZSCORE', p .. 'schedules', schedule) or '-1') ~= tonumber(due) then
  return ''
end
if ARGV[3] == '0' then
  call('ZREM', p .. 'schedules', schedule)
  call('HDEL', p .. 'plans', schedule)
else
  call('ZADD', p .. 'schedules', ARGV[3], schedule)
end
local job = { name = ARGV[4], data = ARGV[5], options = ARGV[6], key = ARGV[7], tenant = ARGV[8], level = ARGV[9] }
if overfull(1, #job.data) then
  tally('skipped', 1)
  write_tallies()
  return '!'
end
local id = add_job(job, 0)
write_tallies()
return id
