-- What every script of this room knows about a queue. `q` is a queue's key prefix, `bull:{name}:`.
-- The layout is BullMQ 5.62.0's; the section numbers are those of its protocol reference.
--
-- Every script names two keys: `base`, which never exists, and `meta`. While a cluster moves their slot to
-- another server key by key, a call with several keys of which some are missing is refused (TRYAGAIN) by both
-- servers, so no script meets half of a queue: the queue stands still until the move is over.

local call = redis.call

local PRIORITY_STEP = 0x100000000 -- a.4: score = priority * 2^32 + counter
local DELAY_STEP = 0x1000 -- a.4: score = due * 4096 + sequence within the millisecond
local AT_ONCE = 1000 -- ids handled by one step of a purge or a promotion
local UNPACK = 5000 -- arguments unpacked into one command; Lua's stack holds 8000

local events_of, event_key -- the queue whose events were last written to, and their key

local function event(q, ...)
  if q ~= events_of then
    events_of, event_key = q, q .. 'events'
  end
  call('XADD', event_key, '*', 'event', ...)
end

-- The length events are trimmed to; written down when nobody has chosen one (a.2).
local function event_limit(q)
  local limit = call('HGET', q .. 'meta', 'opts.maxLenEvents')
  if not limit then
    limit = 10000
    call('HSET', q .. 'meta', 'opts.maxLenEvents', limit)
  end
  return limit
end

local function event_and_trim(q, ...)
  call('XADD', q .. 'events', 'MAXLEN', '~', event_limit(q), '*', 'event', ...)
end

local function trim_events(q)
  call('XTRIM', q .. 'events', 'MAXLEN', '~', event_limit(q))
end

-- Where waiting jobs go (a.5), whether workers may take any, and the queue's own rate limit.
local function gate(q)
  local meta = call('HMGET', q .. 'meta', 'paused', 'concurrency', 'max', 'duration')
  local found = { list = q .. 'wait', blocked = false, max = meta[3], duration = meta[4] }
  found.concurrency = tonumber(meta[2])
  if meta[1] then
    found.list, found.blocked = q .. 'paused', true
  elseif found.concurrency then
    found.blocked = call('LLEN', q .. 'active') >= found.concurrency
  end
  return found
end

-- Wake a worker: there is work.
local function mark(q, blocked)
  if not blocked then
    call('ZADD', q .. 'marker', 0, '0')
  end
end

-- When the next delayed job is due, as a worker reads it; nil if there is none.
local function next_due(q)
  local first = call('ZRANGE', q .. 'delayed', 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) / DELAY_STEP
end

-- Wake a worker when the next delayed job is due.
local function mark_delayed(q)
  local due = next_due(q)
  if due then
    call('ZADD', q .. 'marker', due, '1')
  end
end

local function in_steps(list, run)
  for first = 1, #list, UNPACK do
    run(unpack(list, first, math.min(first + UNPACK - 1, #list)))
  end
end

local function push(q, list, blocked, id, command)
  call(command, list, id)
  mark(q, blocked)
end

local function push_by_priority(q, priority, blocked, id)
  local turn = call('INCR', q .. 'pc') % PRIORITY_STEP
  call('ZADD', q .. 'prioritized', priority * PRIORITY_STEP + turn, id)
  mark(q, blocked)
end

-- In front of the jobs of its priority. BullMQ wakes nobody here.
local function push_back_by_priority(q, priority, id)
  call('ZADD', q .. 'prioritized', priority * PRIORITY_STEP, id)
end

-- Score and time of a job due `delay` ms after `now`: jobs of one millisecond keep their order (a.4).
local function delayed_score(q, now, delay)
  local due = delay > 0 and now + delay or now
  local lowest, highest = due * DELAY_STEP, (due + 1) * DELAY_STEP - 1
  local last = call('ZREVRANGEBYSCORE', q .. 'delayed', highest, lowest, 'WITHSCORES', 'LIMIT', 0, 1)
  if last[2] then
    return math.min(tonumber(last[2]) + 1, highest), due
  end
  return lowest, due
end

local function priority_of(key)
  return tonumber(call('HGET', key, 'priority')) or 0
end

-- Move what is due from delayed to waiting.
local function promote_due(q, now, at)
  local due = call('ZRANGEBYSCORE', q .. 'delayed', 0, (now + 1) * DELAY_STEP - 1, 'LIMIT', 0, AT_ONCE)
  if #due == 0 then
    return
  end
  call('ZREM', q .. 'delayed', unpack(due))
  for _, id in ipairs(due) do
    local priority = priority_of(q .. id)
    if priority == 0 then
      call('LPUSH', at.list, id)
    else
      push_by_priority(q, priority, true, id)
    end
    event(q, 'waiting', 'jobId', id, 'prev', 'delayed')
    call('HSET', q .. id, 'delay', 0)
  end
  mark(q, at.blocked)
end

-- The queue prefix and the id in a job's full key.
local function split_key(key)
  local q, id = string.match(key, '^(.*:)([^:]*)$')
  return q, id
end
