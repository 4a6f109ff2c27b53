-- What every script of this room knows about a partition. `p` is its key prefix, `toril:stream:{name}:`.
--
-- A job with nothing to wait for is an entry of its level's stream (`s:<level>`): its name, data and options,
-- and the entry's id is its own. A job that waits for something (its turn among those with its key, its
-- tenant's turn, a time, another attempt) is a hash (`j:<id>`), and when it is ready, it has a *token* in the
-- stream of its level. Who takes a token gets the job whose tenant's turn it is. So the stream holds one entry
-- for each job that is ready or running, and a group's lag is the number of jobs that are ready.
--
-- An entry has the fields n (name, unless it is the usual one), d (data) and o (options, where there are any);
-- a job's hash has these, and l level, k order key, t tenant, a attempts that failed, c deliveries that ended in a
-- crash, f the first error, e the last one. Which entry it runs under, is in the hash `bound`.
--
-- Every script names two keys: `base`, which never exists, and `meta`. While a cluster moves their slot to
-- another server key by key, a call with several keys of which some are missing is refused (TRYAGAIN) by both
-- servers, so no script meets half of a partition: it stands still until the move is over.

local call = redis.call
local p = KEYS[1]
local META = p .. 'meta'
local RATE_PERIOD, RATES_KEPT = 10000, 13 -- ms, periods

local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

local function text(number)
  return string.format('%.0f', number)
end

local FIELDS = {
  'group',
  'levels',
  'weights',
  'backlog',
  'backlog_bytes',
  'max_deliveries',
  'dead_head',
  'paused',
  'jobs',
  'bytes',
  'seq',
  'turn',
  'route',
  'largest',
  'unique_for',
}

-- The queue's options and counters; nil where there are none: it was never opened, or flushed.
local q
local function configured()
  local its = call('HMGET', META, unpack(FIELDS))
  if not its[1] then
    return false
  end
  q = {}
  for place, name in ipairs(FIELDS) do
    q[name] = its[place]
  end
  q.levels, q.seq = tonumber(q.levels), tonumber(q.seq or '0')
  return true
end

local UNCONFIGURED = 'UNCONFIGURED this queue has no options: it was flushed, or never opened'

-- Counters are changed once, at the end.
local tallies = {}
local function tally(name, by)
  tallies[name] = (tallies[name] or 0) + by
end

local seq_used, rung = false, false
local function write_tallies()
  if seq_used then
    call('HSET', META, 'seq', text(q.seq))
  end
  local period = text(math.floor(now / RATE_PERIOD))
  for name, by in pairs(tallies) do
    if by ~= 0 then
      call('HINCRBY', META, name, by)
      if (name == 'added' or name == 'done') and call('HINCRBY', p .. 'rates', period .. ' ' .. name, by) == by then
        for _, field in ipairs(call('HKEYS', p .. 'rates')) do
          if tonumber(string.match(field, '^%d+')) <= tonumber(period) - RATES_KEPT then
            call('HDEL', p .. 'rates', field)
          end
        end
      end
    end
  end
  if rung then
    call('XADD', p .. 'bell', 'MAXLEN', 1, '*', 'r', '')
  end
end

-- An id that no entry and no job had before: the time in microseconds, written as a stream id. All have as many
-- digits: jobs that are due at the same time are in the order of their ids as texts.
local function next_id()
  q.seq = math.max(q.seq + 1, now_us)
  seq_used = true
  local ms = math.floor(q.seq / 1000)
  return string.format('%d-%d', ms, 1000 + q.seq - ms * 1000)
end

local function stream_of(level)
  return p .. 's:' .. level
end

-- A reply of fields and values as a table.
local function as_table(flat)
  local made = {}
  for at = 1, #flat, 2 do
    made[flat[at]] = flat[at + 1]
  end
  return made
end

local function make_group(key)
  redis.pcall('XGROUP', 'CREATE', key, q.group, '0', 'MKSTREAM')
end

-- A call on a group, which is made where it is missing: after a flush, or on a new server.
local function with_group(key, ...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and string.find(reply.err, '^NOGROUP') then
    make_group(key)
    reply = redis.pcall(...)
  end
  if type(reply) == 'table' and reply.err then
    error(reply)
  end
  return reply
end

-- ---------------------------------------------------------------------- becoming ready

-- A job that has waited is ready: it is in its tenant's list, and has a token in its level's stream.
local function make_ready(id, level, tenant, first)
  if call(first and 'LPUSH' or 'RPUSH', p .. 'r:' .. level .. ':' .. tenant, id) == 1 then
    call('RPUSH', p .. 'ring:' .. level, tenant)
  end
  call('XADD', stream_of(level), next_id(), 'h', '')
  tally('tokens', 1)
  rung = true
end

-- A job comes in, or its time has come: it is ready when no other one of its key is before it.
local function enter(id, level, key, tenant, is_new)
  if
    key ~= ''
    and call('HSETNX', p .. 'heads', key, id) == 0
    and (is_new or call('HGET', p .. 'heads', key) ~= id)
  then
    call('RPUSH', p .. 'm:' .. key, id)
  else
    make_ready(id, level, tenant)
  end
end

-- The head of a key is gone: it is the next one's turn.
local function pass_on(key)
  while key ~= '' do
    local id = call('LPOP', p .. 'm:' .. key)
    if not id then
      call('HDEL', p .. 'heads', key)
      return
    end
    local its = call('HMGET', p .. 'j:' .. id, 'l', 't')
    if its[1] then
      call('HSET', p .. 'heads', key, id)
      make_ready(id, its[1], its[2])
      return
    end
  end
end

-- Whether so much more would be too much; then why.
local function overfull(jobs, bytes)
  if tonumber(q.jobs or '0') + (tallies.jobs or 0) + jobs > tonumber(q.backlog) then
    return 'FULL the backlog is ' .. (q.jobs or '0') .. ' jobs of at most ' .. q.backlog
  end
  local most = tonumber(q.backlog_bytes)
  if most > 0 and tonumber(q.bytes or '0') + (tallies.bytes or 0) + bytes > most then
    return 'FULL the backlog has ' .. (q.bytes or '0') .. ' bytes of at most ' .. q.backlog_bytes
  end
end

local USUAL_NAME = 'job'

-- A job with nothing to wait for is an entry of its level's stream; its id. What is as usual is left out of it.
local function add_entry(level, name, data, options)
  local stream, id = stream_of(level), next_id()
  if options ~= '' then
    call('XADD', stream, id, 'n', name, 'd', data, 'o', options)
  elseif name ~= USUAL_NAME then
    call('XADD', stream, id, 'n', name, 'd', data)
  else
    call('XADD', stream, id, 'd', data)
  end
  rung = true
  return id
end

local function tally_added(jobs, bytes)
  tally('jobs', jobs)
  tally('added', jobs)
  tally('bytes', bytes)
end

-- Add one job; its id. `due` is 0, or when it is to be ready (ms).
local function add_job(job, due)
  tally_added(1, #job.data)
  if job.key == '' and job.tenant == '' and due <= now then
    return add_entry(job.level, job.name, job.data, job.options)
  end
  tally('held', 1)
  local id = next_id()
  local hash = p .. 'j:' .. id
  call('HSET', hash, 'n', job.name, 'd', job.data, 'o', job.options, 'l', job.level, 'k', job.key, 't', job.tenant)
  if due > now then
    call('ZADD', p .. 'delayed', text(due), id)
    rung = true -- whoever waits, may have to wait less
  else
    enter(id, job.level, job.key, job.tenant, true)
  end
  return id
end
