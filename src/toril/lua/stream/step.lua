#!lua flags=allow-oom
-- One step of a worker: give up the jobs it is done with, and take the next ones.
-- keyspace: stream
-- keys: base meta
-- args: consumer, how many jobs it wants, how many it may have at most, then for each job that it gives up an
--       outcome, level, entry, delivery, id ('' where it is the entry's), bytes of its data, order key, and
--         done       ms that the result is kept for, the result, number of effects; for each effect how many
--                    words its command has, and the words
--         later      delay in ms, attempts that failed, the error or ''
--         dead       reason, attempts that failed, the error, ms that the outcome is kept for, the outcome
--         cancelled  ms that the outcome is kept for, the outcome
-- result: {for each job given up 1, 0 where it was no longer this consumer's, or why an effect failed; the jobs
--         taken as {level, entry, delivery, id, fields}; when something is due next in ms, 0 for nothing;
--         the time; how many schedules are due; 1 where the queue is paused}
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

local codes, mine = {}, {}
for level, entries in pairs(by_level(given_up)) do
  mine[level] = held_by(level, consumer, entries, most)
end
for place, job in ipairs(given_up) do
  if mine[job.level][job.entry] ~= tonumber(job.delivery) then
    codes[place] = 0
  else
    codes[place] = job.outcome == 'done' and finish(job) or give_up(job)
    mine[job.level][job.entry] = codes[place] == 1 and 0 or tonumber(job.delivery)
  end
end
write_acks()

local rows, due, schedules = {}, 0, 0
if wanted > 0 and not q.paused then
  local more_due, more_in
  more_due, due = promote_due()
  more_in = take_in()
  rows = take(wanted, consumer)
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
  rung = #rows == wanted
end
write_tallies()
return { codes, rows, text(due), text(now), schedules, q.paused and 1 or 0 }
