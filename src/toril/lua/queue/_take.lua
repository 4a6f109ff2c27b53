-- Taking jobs: from waiting to active, with a lock each.

-- How long the rate limit holds, in ms (0 when it does not), and how many more jobs it lets through now.
local function limit_left(q, max)
  if not max then
    return 0, math.huge
  end
  local started = tonumber(call('GET', q .. 'limiter') or 0)
  if started < max then
    return 0, max - started
  end
  local left = call('PTTL', q .. 'limiter')
  if left == 0 then
    call('DEL', q .. 'limiter') -- its window ends in this very millisecond: a new one begins
    return 0, max
  end
  -- A counter that never expires limits nobody, as in BullMQ.
  return math.max(0, left), math.huge
end

-- Up to `most` ids, already in the active list: first those without a priority.
local function pop(q, most)
  local ids = {}
  repeat
    local popped = call('RPOP', q .. 'wait', most - #ids) or {}
    for _, id in ipairs(popped) do
      if string.sub(id, 1, 2) ~= '0:' then -- markers that BullMQ 4 left behind
        ids[#ids + 1] = id
      end
    end
  until #popped == 0 or #ids == most
  if #ids < most then
    local first = call('ZPOPMIN', q .. 'prioritized', most - #ids)
    for place = 1, #first, 2 do
      ids[#ids + 1] = first[place]
    end
    if #ids < most then
      call('DEL', q .. 'pc')
    end
  end
  if #ids > 0 then
    call('LPUSH', q .. 'active', unpack(ids))
  end
  return ids
end

-- Lock a job, count its run, and tell; its fields, with its id behind them. `now` is text here.
local function activate(q, id, token, now, lock_ms, worker)
  local key = q .. id
  local fields = call('HGETALL', key)
  local runs = '1'
  for place = 1, #fields, 2 do
    if fields[place] == 'ats' then
      runs = string.format('%.0f', fields[place + 1] + 1)
    end
  end
  if token ~= '0' then
    call('SET', key .. ':lock', token, 'PX', lock_ms)
  end
  event(q, 'active', 'jobId', id, 'prev', 'waiting')
  -- What is new stands behind what was there: who reads the fields in order, has the new values. As text: that
  -- is what a hash has.
  local last = #fields
  fields[last + 1], fields[last + 2] = 'processedOn', now
  fields[last + 3], fields[last + 4] = 'ats', runs
  if worker == '' then
    call('HSET', key, 'processedOn', now, 'ats', runs)
  else
    call('HSET', key, 'processedOn', now, 'ats', runs, 'pb', worker)
    fields[last + 5], fields[last + 6] = 'pb', worker
  end
  fields[#fields + 1] = id
  return fields
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
  local room
  taken.limited, room = limit_left(q, max)
  if taken.limited > 0 or here.blocked then
    return taken
  end
  if here.concurrency then
    room = math.min(room, here.concurrency - call('LLEN', q .. 'active'))
  end
  local ids = pop(q, math.min(#tokens, room))
  if #ids == 0 then
    taken.empty = true
    taken.due = next_due(q) or 0
    return taken
  end
  if max and call('INCRBY', q .. 'limiter', #ids) == #ids then
    call('PEXPIRE', q .. 'limiter', math.floor(math.abs(duration)))
  end
  local time = string.format('%.0f', now)
  for place, id in ipairs(ids) do
    taken.jobs[place] = activate(q, id, tokens[place], time, lock_ms, worker)
  end
  mark(q, false) -- wakes the next idle worker, also when nothing is left (a.12)
  return taken
end
