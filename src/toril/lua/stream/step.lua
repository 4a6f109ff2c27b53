#!lua flags=allow-oom
-- One step of a worker: give up the jobs it is done with, and take the next ones.
-- keyspace: stream
-- keys: base meta
-- args: consumer, how many jobs it wants, how many it may have at most; how many groups of plain jobs follow, each
--       level, number of jobs, bytes of the data of each (in one text), their entries: jobs that are their
--       entries, were given to a worker once, and are done without result and effects. Then for each other job
--       that it gives up an outcome, level, entry, delivery, id ('' where it is the entry's), bytes of its data,
--       order key, and
--         done       ms that the result is kept for, the result, number of effects; for each effect how many
--                    words its command has, and the words
--         later      delay in ms, attempts that failed, the error or ''
--         dead       reason, attempts that failed, the error, ms that the outcome is kept for, the outcome
--         cancelled  ms that the outcome is kept for, the outcome
-- result: {for each job given up 1, 0 where it was no longer this consumer's, or why an effect failed; the jobs
--         taken as {level, {{entry, fields, id where it is not the entry's}, …}}; when something is due next in
--         ms, 0 for nothing; the time; how many schedules are due; 1 where the queue is paused}
-- include: stream/_stream
-- include: stream/_end
-- include: stream/_lease
-- include: stream/_intake
-- include: stream/_take

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local consumer, wanted, most, at = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), 3

local function read()
  at = at + 1
  return ARGV[at]
end

local READ = {
  done = function(job)
    job.ttl, job.result, job.effects = read(), read(), {}
    for effect = 1, tonumber(read()) do
      local words = {}
      for word = 1, tonumber(read()) do
        words[word] = read()
      end
      job.effects[effect] = words
    end
  end,
  later = function(job)
    job.delay, job.attempts, job.problem = tonumber(read()), read(), read()
  end,
  dead = function(job)
    job.reason, job.attempts, job.problem, job.ttl, job.result = read(), read(), read(), read(), read()
  end,
  cancelled = function(job)
    job.ttl, job.result = read(), read()
  end,
}

-- Plain jobs that are done: most jobs of a busy queue, so they are dealt with all at once.
local codes = {}
local function finish_plain(level, count, sizes)
  local entries = { unpack(ARGV, at + 1, at + count) }
  at = at + count
  local held, mine, bytes, place = held_by(level, consumer, entries, most), {}, 0, 0
  for size in string.gmatch(sizes, '%d+') do
    place = place + 1
    local entry = entries[place]
    if held[entry] == 1 then
      held[entry] = 0
      mine[#mine + 1] = entry
      bytes = bytes + size
      codes[#codes + 1] = 1
    else
      codes[#codes + 1] = 0
    end
  end
  if #mine == 0 then
    return
  end
  local stream = stream_of(level)
  call('XACK', stream, q.group, unpack(mine))
  call('XDEL', stream, unpack(mine))
  if any_cancels then
    call('HDEL', p .. 'cancels', unpack(mine))
  end
  tally('jobs', -#mine)
  tally('bytes', -bytes)
  tally('done', #mine)
end

for _ = 1, tonumber(read()) do
  finish_plain(read(), tonumber(read()), read())
end

local given_up = {}
while at < #ARGV do
  local job = { outcome = read(), level = read(), entry = read(), delivery = read(), id = read() }
  job.bytes, job.key = tonumber(read()), read()
  READ[job.outcome](job)
  given_up[#given_up + 1] = job
end

local function finish(job)
  local id = job.id ~= '' and job.id or job.entry
  for _, words in ipairs(job.effects) do
    local reply = redis.pcall(unpack(words))
    if type(reply) == 'table' and reply.err then
      return words[1] .. ': ' .. reply.err
    end
  end
  ack(job.level, job.entry, job.id)
  leave(id, job.id ~= '', job.key, job.bytes)
  keep_result(id, job.ttl, job.result)
  tally('done', 1)
  return 1
end

local function give_up(job)
  local its = job_at(job.level, job.entry, job.id)
  if its.gone then
    -- Somebody has deleted its entry, and it has not been done: nothing is left to try again.
    ack(job.level, job.entry, job.id)
    tally('lost', 1)
    leave(its.id, job.id ~= '', job.key, job.bytes)
    return 'LOST'
  end
  ack(job.level, job.entry, job.id)
  local crashes = its.crashes + tonumber(job.delivery) - 1
  if job.outcome == 'later' then
    put_off(its, job.delay, job.attempts, crashes, job.problem)
  elseif job.outcome == 'dead' then
    its.attempts = job.attempts
    die(its, job.reason, consumer, text(crashes + 1), job.problem, job.level .. ' ' .. job.entry)
    keep_result(its.id, job.ttl, job.result)
  else
    leave(its.id, its.held, its.key, #its.data)
    keep_result(its.id, job.ttl, job.result)
    tally('cancelled', 1)
  end
  return 1
end

local mine = {}
for level, entries in pairs(by_level(given_up)) do
  mine[level] = held_by(level, consumer, entries, most)
end
for _, job in ipairs(given_up) do
  local code = 0
  if mine[job.level][job.entry] == tonumber(job.delivery) then
    code = job.outcome == 'done' and finish(job) or give_up(job)
    mine[job.level][job.entry] = code == 1 and 0 or tonumber(job.delivery)
  end
  codes[#codes + 1] = code
end
write_acks()

local groups, due, schedules = {}, 0, 0
if wanted > 0 and not q.paused then
  local more_due, more_in, taken
  more_due, due = promote_due()
  more_in = take_in()
  groups, taken = take(wanted, consumer)
  write_acks()
  local planned = tonumber(call('ZRANGE', p .. 'schedules', 0, 0, 'WITHSCORES')[2] or '0')
  if planned > 0 and planned <= now then
    schedules = call('ZCOUNT', p .. 'schedules', '-inf', text(now))
  elseif planned > 0 and (due == 0 or planned < due) then
    due = planned
  end
  if more_due or more_in then
    due = now
  end
  -- Who takes all it asks for, wakes the next one: there may be more than it can take.
  rung = taken == wanted
end
write_tallies()
return { codes, groups, text(due), text(now), schedules, q.paused and 1 or 0 }
