#!lua flags=no-writes
-- What an autoscaler and an operator want to know of a partition.
-- keyspace: stream
-- keys: base meta
-- args: none
-- result: {the time in ms, counters as fields and values, rates as fields and values, {delayed, dead, inlet,
--         keys with a head, schedules}, when the next delayed job is due in ms, when the oldest dead letter died
--         (its entry, or ''), for each level {entries, pending, lag (-1 where the server does not know it), the
--         first entry that nobody has, or '', consumers, the oldest idle time of a pending entry in ms}}
-- include: stream/_stream

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local levels = {}
for number = 0, q.levels - 1 do
  local stream = stream_of(text(number))
  local row = { call('XLEN', stream), 0, 0, '', 0, 0 }
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups.err and {} or groups) do
    local its = as_table(group)
    if its.name == q.group then
      row[2], row[3], row[5] = its.pending, its.lag or -1, its.consumers
      local first = call('XRANGE', stream, '(' .. its['last-delivered-id'], '+', 'COUNT', 1)[1]
      row[4] = first and first[1] or ''
      if its.pending > 0 then
        local oldest = call('XPENDING', stream, q.group, '-', '+', 1)[1]
        row[6] = oldest and oldest[3] or 0
      end
    end
  end
  levels[#levels + 1] = row
end
local letter = call('XRANGE', p .. 'dead', '-', '+', 'COUNT', 1)[1]
return {
  text(now),
  call('HGETALL', META),
  call('HGETALL', p .. 'rates'),
  { call('ZCARD', p .. 'delayed'), call('XLEN', p .. 'dead'), call('XLEN', p .. 'inlet'), call('HLEN', p .. 'heads'),
    call('ZCARD', p .. 'schedules') },
  call('ZRANGE', p .. 'delayed', 0, 0, 'WITHSCORES')[2] or '0',
  letter and letter[1] or '',
  levels,
}
