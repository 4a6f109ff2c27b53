-- A job leaves the active list: completed, failed, to be retried, delayed, or handed back.

-- A finished job frees its deduplication id, unless that lives by the clock (a.13).
local function end_dedup(q, dedup_id, id)
  local key = q .. 'de:' .. dedup_id
  local left = call('PTTL', key)
  if left == 0 or (left == -1 and call('GET', key) == id) then
    call('DEL', key)
  end
end

-- Counts per minute; the newest at the head of the list.
local function count_minute(q, target, points, now)
  local key = q .. 'metrics:' .. target
  local count = call('HINCRBY', key, 'count', 1) - 1
  local before = call('HMGET', key, 'prevTS', 'prevCount')
  if not before[1] then
    call('HSET', key, 'prevTS', now, 'prevCount', 0)
    return
  end
  local minutes = math.min(math.floor(now / 60000) - math.floor(before[1] / 60000), points)
  if minutes > 0 then
    local new = { count - before[2] }
    for empty = 2, minutes do
      new[empty] = 0
    end
    in_steps(new, function(...)
      call('LPUSH', key .. ':data', ...)
    end)
    call('LTRIM', key .. ':data', 0, points - 1)
    call('HSET', key, 'prevCount', count, 'prevTS', now)
  end
end

-- Remove finished jobs that are too old, then those that are too many; a bounded number at a time.
local function purge(q, set, count, age, now)
  local function drop(ids)
    for place = #ids, 1, -1 do
      remove_job(q, ids[place], false, false)
    end
    in_steps(ids, function(...)
      call('ZREM', set, ...)
    end)
  end
  if age then
    drop(call('ZRANGEBYSCORE', set, '-inf', now - age * 1000, 'LIMIT', 0, AT_ONCE))
  end
  if count and count > 0 then
    local surplus = call('ZCARD', set) - count
    if surplus > 0 then
      drop(call('ZRANGE', set, 0, math.min(surplus, AT_ONCE) - 1))
    end
  end
end

-- What many jobs of one step have in common is written once, at its end.
local locks, freed = {}, {} -- lock tokens as they were when the step began; ids whose lock was given up
local freed_locks, finished = {}, { completed = {}, failed = {} }

local no_children = false -- whether it is known that no job of the step has any

-- Read the locks of all jobs of a step at once, and ask whether any has children that are pending or have failed.
local function look_at(jobs)
  local lock_keys, family_keys = {}, {}
  for place, job in ipairs(jobs) do
    lock_keys[place] = job.lock
    family_keys[2 * place - 1], family_keys[2 * place] = job.key .. ':dependencies', job.key .. ':unsuccessful'
  end
  local place = 0
  in_steps(lock_keys, function(...)
    for _, held in ipairs(call('MGET', ...)) do
      place = place + 1
      locks[jobs[place].id] = held
    end
  end)
  local found = 0
  in_steps(family_keys, function(...)
    found = found + call('EXISTS', ...)
  end)
  no_children = found == 0
end

local function write_finished(q)
  for target, scored in pairs(finished) do
    in_steps(scored, function(...)
      call('ZADD', q .. target, ...)
    end)
    finished[target] = {}
  end
end

local function write_all(q)
  write_finished(q)
  in_steps(freed_locks, function(...)
    call('DEL', ...)
  end)
  in_steps(freed, function(...)
    call('SREM', q .. 'stalled', ...)
  end)
end

-- Free a job from its worker; 0, or a.9's code for a lock that is not this worker's.
local function unlock(job)
  local id, token = job.id, job.token
  if token == '0' then
    return 0
  end
  if locks[id] == token then
    locks[id] = false
    freed[#freed + 1] = id
    freed_locks[#freed_locks + 1] = job.lock
    return 0
  end
  return locks[id] and -6 or -2
end

-- Take a job from the active list; 0, or a code of a.9.
local function leave_active(q, job, from)
  local code = unlock(job)
  if code < 0 then
    return code
  end
  if job.fields and #job.fields > 0 then
    call('HSET', job.key, unpack(job.fields))
  end
  return call('LREM', q .. 'active', from or -1, job.id) > 0 and 0 or -3
end

-- Why a job cannot be completed because of its children: 0, or a code of a.9.
local function children_in_the_way(key)
  if no_children or call('EXISTS', key .. ':dependencies', key .. ':unsuccessful') == 0 then
    return 0
  end
  return call('EXISTS', key .. ':dependencies') == 1 and -4 or -9
end

-- The fate of a child: `own` is its parentKey, parent, …
local function tell_parent(q, key, own, job, now)
  write_finished(q) -- a parent's state is looked at
  no_children = false -- and the parent may be a job of this step
  local parent_key, parent = own[2], own[3]
  if job.target == 'failed' then
    if parent then
      child_failed(parent, key, job.value, now)
    end
  elseif call('SREM', parent_key .. ':dependencies', key) == 1 then
    local pq, parent_id = split_key(parent_key)
    if parent then
      local link = cjson.decode(parent)
      pq, parent_id = link['queueKey'] .. ':', link['id']
    end
    child_completed(parent_key, pq, parent_id, key, job.value, now)
  end
end

-- `job`: id, key, lock (its key), token, target ('completed' or 'failed'), value, count, age, attempts, fields.
local function finish(q, job, now, points)
  local key, id = job.key, job.id
  local own = call('HMGET', key, 'name', 'parentKey', 'parent', 'deid', 'atm', 'defa')
  if not own[1] and call('EXISTS', key) == 0 then
    return -1
  end
  local completed = job.target == 'completed'
  local code = completed and children_in_the_way(key) or 0
  if code == 0 then
    code = leave_active(q, job)
  end
  if code < 0 then
    return code
  end
  if own[4] then
    end_dedup(q, own[4], id)
  end
  local has_parent = own[2] and own[2] ~= ''
  if has_parent or own[3] then
    tell_parent(q, key, own, job, now)
  end
  local made = (tonumber(own[5]) or 0) + 1
  local value = completed and 'returnvalue' or 'failedReason'
  if job.count == 0 then
    delete_job(key)
    if has_parent then
      leave_parent(key, own[2], false)
    end
  else
    local done = finished[job.target]
    done[#done + 1], done[#done + 2] = now, id
    call('HSET', key, 'atm', made, value, job.value, 'finishedOn', now)
    if own[6] and not completed then
      call('HDEL', key, 'defa')
    end
    if job.age or (job.count and job.count > 0) then
      write_finished(q)
      purge(q, q .. job.target, job.count, job.age, now)
    end
  end
  event(q, job.target, 'jobId', id, value, job.value, 'prev', 'active')
  if not completed and made >= job.attempts then
    event(q, 'retries-exhausted', 'jobId', id, 'attemptsMade', made)
  end
  if points then
    count_minute(q, job.target, points, now)
  end
  return 0
end

-- Back to waiting for one more attempt.
local function retry(q, job, now)
  local before = gate(q)
  promote_due(q, now, before)
  local key = job.key
  if call('EXISTS', key) == 0 then
    return -1
  end
  local code = leave_active(q, job)
  if code < 0 then
    return code
  end
  local priority = priority_of(key)
  local blocked = gate(q).blocked
  if priority == 0 then
    push(q, before.list, blocked, job.id, job.lifo and 'RPUSH' or 'LPUSH')
  else
    push_by_priority(q, priority, blocked, job.id)
  end
  call('HINCRBY', key, 'atm', 1)
  event_and_trim(q, 'waiting', 'jobId', job.id, 'prev', 'active')
  return 0
end

-- To run again after a while. `keeps_attempt`: this run does not count.
local function delay(q, job, now)
  local key = job.key
  if call('EXISTS', key) == 0 then
    return -1
  end
  local code = leave_active(q, job)
  if code < 0 then
    return code
  end
  local score, due = delayed_score(q, now, tonumber(job.delay))
  if not job.keeps_attempt then
    call('HINCRBY', key, 'atm', 1)
  end
  call('HSET', key, 'delay', job.delay)
  call('ZADD', q .. 'delayed', score, job.id)
  event_and_trim(q, 'delayed', 'jobId', job.id, 'delay', due)
  mark_delayed(q)
  return 0
end

-- To the front of the queue, as if it had never been taken.
local function hand_back(q, job)
  local key = job.key
  if call('EXISTS', key) == 0 then
    return -1
  end
  local code = leave_active(q, job, 1)
  if code < 0 and code ~= -3 then
    return code
  end
  if code == 0 then
    local at = gate(q)
    local priority = priority_of(key)
    if priority > 0 then
      push_back_by_priority(q, priority, job.id)
    else
      push(q, at.list, at.blocked, job.id, 'RPUSH')
    end
    event_and_trim(q, 'waiting', 'jobId', job.id, 'prev', 'active')
  end
  return math.max(0, call('PTTL', q .. 'limiter'))
end
