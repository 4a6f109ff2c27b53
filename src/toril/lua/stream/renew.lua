#!lua flags=allow-oom
-- Say that a worker lives, and renew the leases of the jobs it has.
-- keyspace: stream
-- keys: base meta
-- args: consumer, ms that it counts as alive for; then for each job level, entry, delivery, id
-- result: for each job 1, 0 where it is no longer this consumer's, 2 where it is to be cancelled
-- include: stream/_stream
-- include: stream/_lease

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
-- A consumer may have more than it names: what is on its way to it.
local UNHEARD_OF = 10000
local consumer, codes, jobs = ARGV[1], {}, {}
call('SET', p .. 'hb:' .. consumer, '1', 'PX', ARGV[2])
for at = 3, #ARGV, 4 do
  jobs[#jobs + 1] = { level = ARGV[at], entry = ARGV[at + 1], delivery = tonumber(ARGV[at + 2]), id = ARGV[at + 3] }
end
local any_cancels = call('EXISTS', p .. 'cancels') == 1
local mine, renewed = {}, {}
for level, entries in pairs(by_level(jobs)) do
  mine[level], renewed[level] = held_by(level, consumer, entries, #jobs + UNHEARD_OF), {}
end
for place, job in ipairs(jobs) do
  codes[place] = 0
  if mine[job.level][job.entry] == job.delivery then
    codes[place] = any_cancels and call('HEXISTS', p .. 'cancels', job.id) == 1 and 2 or 1
    table.insert(renewed[job.level], job.entry)
  end
end
for level, entries in pairs(renewed) do
  for first = 1, #entries, 1000 do
    local last = math.min(first + 999, #entries)
    -- JUSTID: the delivery keeps its number.
    local claim = { 'XCLAIM', stream_of(level), q.group, consumer, 0, unpack(entries, first, last) }
    claim[#claim + 1] = 'JUSTID'
    call(unpack(claim))
  end
end
return codes
