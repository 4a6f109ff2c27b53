#!lua flags=allow-oom
-- One step of a worker: give up the jobs it is done with, and take the next ones (a.12).
-- keyspace: queue
-- keys: base meta
-- args: now, metrics points or '', lock ms, limiter max or '', limiter ms, worker name or '', how many
--       tokens follow (one for each job wanted), the tokens, then for each job it gives up its outcome and
--       what belongs to it:
--         completed  id token value count age
--         failed     id token reason count age attempts stacktrace telemetry
--         retry      id token lifo reason stacktrace telemetry
--         delay      id token delay keeps_attempt reason stacktrace telemetry
--         back       id token
--       (count and age '' for none; reason, stacktrace and telemetry '' to leave the fields as they are)
-- result: {codes in order (0, or a.9's; for `back` the rate limit's ms; a text where the script failed at a
--         job), jobs as {fields…, id}, rate limit ms, when the next delayed job is due}
-- include: queue/_queue
-- include: queue/_parent
-- include: queue/_remove
-- include: queue/_finish
-- include: queue/_take

local q, now, at = KEYS[1], tonumber(ARGV[1]), 7

local function read()
  at = at + 1
  return ARGV[at]
end

local function read_number()
  return tonumber(read())
end

local tokens = {}
for place = 1, tonumber(ARGV[7]) do
  tokens[place] = read()
end

-- What a failed run leaves in its job.
local function read_fields(with_reason)
  local fields = {}
  local function keep(name, value)
    if value ~= '' then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  if with_reason then
    keep('failedReason', read())
  end
  keep('stacktrace', read())
  keep('tm', read())
  return fields
end

local given_up = {}
while at < #ARGV do
  local outcome, id, token = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local key = q .. id
  local job = { outcome = outcome, id = id, key = key, lock = key .. ':lock', token = token }
  at = at + 3
  if outcome == 'completed' or outcome == 'failed' then
    job.target, job.value, job.count, job.age = outcome, read(), read_number(), read_number()
    if outcome == 'failed' then
      job.attempts, job.fields = read_number(), read_fields(false)
      table.insert(job.fields, 'failedReason')
      table.insert(job.fields, job.value)
    end
  elseif outcome == 'retry' then
    job.lifo, job.fields = read() == '1', read_fields(true)
  elseif outcome == 'delay' then
    job.delay, job.keeps_attempt, job.fields = read(), read() == '1', read_fields(true)
  end
  given_up[#given_up + 1] = job
end

local GIVE_UP = { completed = finish, failed = finish, retry = retry, delay = delay, back = hand_back }

local points = tonumber(ARGV[2])

-- What belongs to a job may be broken (its parent's keys, say). Then it stays active, where it is seen and will
-- stall; the other jobs of the step do not suffer for it.
local function give_up(job)
  local worked, code = pcall(GIVE_UP[job.outcome], q, job, now, points)
  if worked then
    return code
  end
  write_finished(q)
  if freed[#freed] == job.id and not (job.target and call('ZSCORE', q .. job.target, job.id)) then
    call('LREM', q .. 'active', 0, job.id)
    call('LPUSH', q .. 'active', job.id)
  end
  return type(code) == 'table' and code.err or tostring(code)
end

local codes, any_finished, refused = {}, false, false
look_at(given_up)
for place, job in ipairs(given_up) do
  local code = give_up(job)
  codes[place] = code
  refused = refused or type(code) == 'string' or code < 0
  any_finished = any_finished or (job.target ~= nil and code == 0)
end
write_all(q)
if any_finished then
  trim_events(q)
end

local jobs, limited, due = {}, 0, 0
local may_be_drained = any_finished
if refused then
  -- As BullMQ has it: a worker that could not give up a job hears of that first.
  may_be_drained = any_finished and (#tokens == 0 or not next_due(q))
elseif #tokens > 0 then
  local taken = take(q, now, tokens, ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6])
  jobs, limited, due = taken.jobs, taken.limited, taken.due
  may_be_drained = any_finished and taken.empty and due == 0
end
if
  may_be_drained
  and call('LLEN', q .. 'wait') == 0
  and call('LLEN', q .. 'active') == 0
  and call('ZCARD', q .. 'prioritized') == 0
then
  event(q, 'drained')
end
return { codes, jobs, limited, due }
