-- Taking jobs: from waiting to active, with a lock each.

-- How long the rate limit holds, in ms; 0 when it does not.
local function limited_for(q, max)
  if max and max <= tonumber(call('GET', q .. 'limiter') or 0) then
    local left = call('PTTL', q .. 'limiter')
    if left == 0 then
      call('DEL', q .. 'limiter')
    end
    return math.max(0, left)
  end
  return 0
end

-- The next id, already in the active list.
local function pop(q)
  while true do
    local id = call('RPOPLPUSH', q .. 'wait', q .. 'active')
    if not id then
      break
    end
    if string.sub(id, 1, 2) ~= '0:' then
      return id
    end
    call('LREM', q .. 'active', 1, id) -- a marker that BullMQ 4 left behind
  end
  local first = call('ZPOPMIN', q .. 'prioritized')
  if first[1] then
    call('LPUSH', q .. 'active', first[1])
    return first[1]
  end
  call('DEL', q .. 'pc')
  return nil
end

-- A job for each token, as far as there are any. `max` and `duration` are the worker's own rate limit.
local function take(q, now, tokens, lock_ms, max, duration, worker)
  local here = gate(q)
  promote_due(q, now, here)
  local taken = { jobs = {}, limited = 0, due = 0, empty = false }
  -- As BullMQ has it: the queue's `max` goes before the worker's, but the worker's `duration` before the
  -- queue's (a.2).
  max = tonumber(here.max) or max
  duration = duration or tonumber(here.duration)
  local blocked = here.blocked
  for place, token in ipairs(tokens) do
    taken.limited = limited_for(q, max)
    if taken.limited > 0 then
      break
    end
    if place > 1 and here.concurrency then
      blocked = call('LLEN', q .. 'active') >= here.concurrency
    end
    if blocked then
      break
    end
    local id = pop(q)
    if not id then
      taken.empty = true
      taken.due = next_due(q) or 0
      break
    end
    local key = q .. id
    if max and call('INCR', q .. 'limiter') == 1 then
      call('PEXPIRE', q .. 'limiter', math.floor(math.abs(duration)))
    end
    if token ~= '0' then
      call('SET', key .. ':lock', token, 'PX', lock_ms)
    end
    event(q, 'active', 'jobId', id, 'prev', 'waiting')
    if worker == '' then
      call('HSET', key, 'processedOn', now)
    else
      call('HSET', key, 'processedOn', now, 'pb', worker)
    end
    call('HINCRBY', key, 'ats', 1)
    local fields = call('HGETALL', key)
    table.insert(fields, 1, id)
    taken.jobs[place] = fields
  end
  if #taken.jobs > 0 then
    mark(q, false) -- wakes the next idle worker, also when nothing is left (a.12)
    if #taken.jobs < #tokens then
      taken.limited, taken.due = 0, 0 -- the next step will find out
    end
  end
  return taken
end
