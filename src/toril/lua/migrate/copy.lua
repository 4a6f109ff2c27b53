#!lua
-- Let jobs of another queue arrive: each with its state and its entry in the tracker, once.
-- keyspace: queue
-- keys: base meta
-- args: runner, the source's priority counter, then jobs as MessagePack (see toril.migrate.jobs), the oldest
--       first where they wait
-- result: for each job: C copied, T it was copied before, N it was copied under a new id, E another job has its
--         id, P its parent must come first, U a scheduler of the same name is here already
-- include: queue/_queue
-- include: queue/_remove
-- include: migrate/_tracker

local q = KEYS[1]
local refused = superseded(q, ARGV[1])
if refused then
  return refused
end
local facts, tracker = q .. 'toril:migration', q .. 'toril:migrated'
local at = gate(q)
local arrived, prioritized, delayed = {}, false, false

local function write(key, job)
  in_steps(job.fields, function(...)
    call('HSET', key, ...)
  end)
  local function extra(command, suffix, values)
    in_steps(values, function(...)
      call(command, key .. suffix, ...)
    end)
  end
  extra('RPUSH', ':logs', job.logs)
  extra('SADD', ':dependencies', job.waits)
  extra('HSET', ':processed', job.results)
  extra('HSET', ':failed', job.ignored)
  extra('ZADD', ':unsuccessful', job.failures)
end

-- A deduplication id goes with the job that owns it. Where jobs replace one another while they are delayed, one
-- that came before is replaced here too.
local function take_dedup(id, dedup)
  local key = q .. 'de:' .. dedup.id
  local owner = call('GET', key)
  if owner and owner ~= id then
    local ours = dedup.replace and call('HEXISTS', tracker, owner) == 1
    if not ours or call('ZREM', q .. 'delayed', owner) == 0 then
      return
    end
    delete_job(q .. owner)
  end
  if dedup.ttl > 0 then
    call('SET', key, id, 'PX', string.format('%.0f', dedup.ttl))
  else
    call('SET', key, id)
  end
end

local function arrive(job)
  local id, tracked = job.id, call('HGET', tracker, job.id)
  local entry = tracked and read_entry(tracked)
  local known = entry and entry.timestamp == job.timestamp
  local here = known and entry.letter == 'b' and job.letter ~= 'b'
  if known and not here then
    return 'T'
  end
  if job.letter == 'x' or job.letter == 'o' then
    write_entry(q, id, job.letter, job.timestamp, '')
    return 'C'
  end
  if job.awaited and job.letter ~= 'b' and call('HEXISTS', job.parent_base .. 'toril:migrated', job.parent_id) == 0 then
    return 'P'
  end
  if job.scheduler and call('HGET', q .. 'toril:migrated-schedulers', job.scheduler) == 'here' then
    write_entry(q, id, 'u', job.timestamp, '')
    return 'U'
  end
  local other
  if not here and call('EXISTS', q .. id) == 1 then
    if not job.renumber then
      return 'E'
    end
    other = tostring(call('INCR', q .. 'id'))
    id = other
  end
  if not here then
    write(q .. id, job)
  end
  write_entry(q, job.id, job.letter, job.timestamp, job.digest, other)
  if job.awaited and job.letter ~= 'b' then
    call('SADD', job.parent_base .. job.parent_id .. ':dependencies', q .. id)
  end
  if job.dedup then
    take_dedup(id, job.dedup)
  end
  local state = STATES[job.letter]
  if not state then
    return 'C'
  elseif state == 'wait' then
    arrived[#arrived + 1] = id
  elseif state == 'active' then
    call('LPUSH', q .. 'active', id)
  else
    call('ZADD', q .. state, job.score, id)
    prioritized = prioritized or state == 'prioritized'
    delayed = delayed or state == 'delayed'
  end
  return other and 'N' or 'C'
end

-- Those that arrived before are at the end workers take from; what was added here is behind them, and these
-- come in between. Where that is too much to be passed by, these come behind it.
local function let_wait()
  local last = call('HGET', facts, 'last')
  local behind = last and call('LPOS', at.list, last, 'MAXLEN', MOST_OWN + 1)
  if not behind and call('LLEN', at.list) > MOST_OWN then
    behind = 0
  end
  if behind then
    local own = behind > 0 and call('LPOP', at.list, behind) or {}
    in_steps(arrived, function(...)
      call('LPUSH', at.list, ...)
    end)
    local turned = {}
    for place = #own, 1, -1 do
      turned[#turned + 1] = own[place]
    end
    in_steps(turned, function(...)
      call('LPUSH', at.list, ...)
    end)
  else
    for place = #arrived, 1, -1 do
      call('RPUSH', at.list, arrived[place])
    end
  end
  call('HSET', facts, 'last', arrived[#arrived])
end

local results = {}
for place = 3, #ARGV do
  results[#results + 1] = arrive(cmsgpack.unpack(ARGV[place]))
end
if #arrived > 0 then
  let_wait()
end
if prioritized and tonumber(call('GET', q .. 'pc') or '0') < tonumber(ARGV[2]) then
  call('SET', q .. 'pc', ARGV[2])
end
if #arrived > 0 or prioritized then
  mark(q, at.blocked)
end
if delayed then
  mark_delayed(q)
end
return results
