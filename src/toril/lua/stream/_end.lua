-- How jobs leave: done, put off, dead, cancelled. Each is for a job that the caller has found to be its own.

-- What a job is, from its entry or its hash. `id` is '' for a job that is its entry.
local function job_at(level, entry, id)
  if id ~= '' then
    local its = as_table(call('HGETALL', p .. 'j:' .. id))
    return { id = id, held = true, name = its.n or '', data = its.d or '', options = its.o or '', level = level,
      key = its.k or '', tenant = its.t or '', attempts = its.a or '0', crashes = tonumber(its.c or '0'),
      first_error = its.f or '', last_error = its.e or '', gone = its.n == nil }
  end
  local found = call('XRANGE', stream_of(level), entry, entry)[1]
  local its = found and as_table(found[2]) or {}
  return { id = entry, held = false, name = its.n or USUAL_NAME, data = its.d or '', options = its.o or '', level = level,
    key = '', tenant = '', attempts = '0', crashes = 0, first_error = '', last_error = '', gone = found == nil }
end

-- What is written for all jobs of a call together: the entries that leave each level, the tokens that are no
-- longer bound, the hashes that go.
local acked, unbound, gone = {}, {}, {}

local function acked_of(level)
  local its = acked[level]
  if not its then
    its = {}
    acked[level] = its
  end
  return its
end

-- The entry of a job leaves its stream.
local function ack(level, entry, id)
  local its = acked_of(level)
  its[#its + 1] = entry
  if id ~= '' then
    unbound[#unbound + 1] = level .. ':' .. entry
    tally('tokens', -1)
  end
end

local function in_parts(items, write)
  for first = 1, #items, 1000 do
    write(unpack(items, first, math.min(first + 999, #items)))
  end
end

local function write_acks()
  for level, entries in pairs(acked) do
    local stream = stream_of(level)
    in_parts(entries, function(...)
      call('XACK', stream, q.group, ...)
      call('XDEL', stream, ...)
    end)
  end
  in_parts(unbound, function(...)
    call('HDEL', p .. 'bound', ...)
  end)
  in_parts(gone, function(...)
    call('UNLINK', ...)
  end)
  acked, unbound, gone = {}, {}, {}
end

-- What became of a job, for those who wait for it.
local function keep_result(id, ttl, outcome)
  if tonumber(ttl) > 0 then
    call('SET', p .. 'o:' .. id, outcome, 'PX', ttl)
    call('SPUBLISH', p .. 'o:' .. id, '')
  end
end

local any_cancels = call('EXISTS', p .. 'cancels') == 1
local function forget_cancel(id)
  if any_cancels then
    call('HDEL', p .. 'cancels', id)
  end
end

-- A job is no more. `key` and `bytes` are its own.
local function leave(id, held, key, bytes)
  tally('jobs', -1)
  tally('bytes', -bytes)
  forget_cancel(id)
  if held then
    tally('held', -1)
    gone[#gone + 1] = p .. 'j:' .. id
    pass_on(key)
  end
end

-- It is tried again later, or at once by somebody else.
local function put_off(job, delay, attempts, crashes, problem)
  local hash = p .. 'j:' .. job.id
  call('HSET', hash, 'n', job.name, 'd', job.data, 'o', job.options, 'l', job.level, 'k', job.key, 't', job.tenant,
    'a', attempts, 'c', crashes)
  if not job.held then
    tally('held', 1)
  end
  if problem ~= '' then
    call('HSETNX', hash, 'f', problem)
    call('HSET', hash, 'e', problem)
    tally('retried', 1)
  end
  if delay > 0 then
    call('ZADD', p .. 'delayed', text(now + delay), job.id)
    rung = true
  else
    make_ready(job.id, job.level, job.tenant, true)
  end
end

-- A letter to the dead: what it was, and why it is there.
local function bury(job, reason, consumer, deliveries, problem, origin)
  local first = job.first_error ~= '' and job.first_error or problem
  local letter = call('XADD', p .. 'dead', next_id(), 'id', job.id, 'reason', reason, 'name', job.name, 'data', job.data,
    'options', job.options, 'level', job.level, 'key', job.key, 'tenant', job.tenant, 'attempts', job.attempts,
    'deliveries', deliveries, 'consumer', consumer, 'first', first, 'last', problem, 'origin', origin)
  call('HSET', p .. 'buried', job.id, letter)
  tally('dead', 1)
end

local DROPPED_AT_ONCE = 200

-- Jobs that follow their dead head to the grave; the rest is done in further steps.
local function drop_followers(key, most)
  local dropped = 0
  while dropped < most do
    local id = call('LPOP', p .. 'm:' .. key)
    if not id then
      break
    end
    local job = job_at('0', '', id)
    job.level = call('HGET', p .. 'j:' .. id, 'l') or '0'
    if not job.gone then
      bury(job, 'dropped', '', '0', 'the job before it with the same key is dead', '')
      tally('jobs', -1)
      tally('held', -1)
      tally('bytes', -#job.data)
      call('UNLINK', p .. 'j:' .. id)
    end
    dropped = dropped + 1
  end
  return dropped
end

-- A job has failed for good. What waits behind it does as the queue's policy says.
local function die(job, reason, consumer, deliveries, problem, origin)
  bury(job, reason, consumer, deliveries, problem, origin)
  tally('jobs', -1)
  tally('bytes', -#job.data)
  forget_cancel(job.id)
  if not job.held then
    return
  end
  tally('held', -1)
  call('UNLINK', p .. 'j:' .. job.id)
  if job.key == '' or q.dead_head == 'block' then
    return -- its key's head stays what it is, so nobody passes it
  end
  if q.dead_head == 'drop' then
    local left = call('LLEN', p .. 'm:' .. job.key)
    drop_followers(job.key, math.min(left, DROPPED_AT_ONCE))
    if left > DROPPED_AT_ONCE then
      call('HSET', p .. 'dropping', job.key, left - DROPPED_AT_ONCE)
      return
    end
  end
  pass_on(job.key)
end
