-- How the fate of a child moves its parent (a.14). A parent's key prefix is `pq`, which may be another
-- queue of the same slot.

-- From waiting-children to where the parent's own priority and delay put it.
local function start_parent(pq, key, id, now)
  local own = call('HMGET', key, 'priority', 'delay')
  local priority, delay = tonumber(own[1]) or 0, tonumber(own[2]) or 0
  if delay > 0 then
    local due = now + delay
    call('ZADD', pq .. 'delayed', due * DELAY_STEP, id)
    event(pq, 'delayed', 'jobId', id, 'delay', due)
    mark_delayed(pq)
    return
  end
  local at = gate(pq)
  if priority == 0 then
    push(pq, at.list, at.blocked, id, 'RPUSH')
  else
    push_by_priority(pq, priority, at.blocked, id)
  end
  event(pq, 'waiting', 'jobId', id, 'prev', 'waiting-children')
end

local function start_waiting_parent(pq, key, id, now)
  if call('EXISTS', key) == 1 and call('ZREM', pq .. 'waiting-children', id) == 1 then
    start_parent(pq, key, id, now)
  end
end

local function start_parent_if_free(pq, key, id, now)
  if call('SCARD', key .. ':dependencies') == 0 then
    start_waiting_parent(pq, key, id, now)
  end
end

-- A child is done: its result goes to the parent, which starts when it was the last.
local function child_completed(parent_key, pq, parent_id, child, result, now)
  call('HSET', parent_key .. ':processed', child, result)
  start_parent_if_free(pq, parent_key, parent_id, now)
end

-- A child has failed for good and its parent is to fail: a worker does that when it takes the parent.
local function fail_parent(pq, key, id, child, now)
  if call('EXISTS', key) == 0 then
    return
  end
  local reason = 'child ' .. child .. ' failed'
  if call('ZREM', pq .. 'waiting-children', id) == 1 then
    call('HSET', key, 'defa', reason)
    start_parent(pq, key, id, now)
  elseif call('ZREM', pq .. 'delayed', id) == 1 then
    call('HSET', key, 'delay', 0, 'defa', reason)
    start_parent(pq, key, id, now)
  elseif not call('ZSCORE', pq .. 'failed', id) then
    call('HSET', key, 'defa', reason)
  end
end

-- A child has failed for good: what its options say about the parent. `parent` is the job's own field.
local function child_failed(parent, child, reason, now)
  local link = cjson.decode(parent)
  local pq, id = link['queueKey'] .. ':', link['id']
  local key = pq .. id
  if not (link['fpof'] or link['cpof'] or link['idof'] or link['rdof']) then
    return
  end
  if call('SREM', key .. ':dependencies', child) == 0 then
    return
  end
  if link['fpof'] then
    call('ZADD', key .. ':unsuccessful', now, child)
    fail_parent(pq, key, id, child, now)
  elseif link['cpof'] then
    call('HSET', key .. ':failed', child, reason)
    start_waiting_parent(pq, key, id, now)
  else
    start_parent_if_free(pq, key, id, now)
    if link['idof'] then
      call('HSET', key .. ':failed', child, reason)
    end
  end
end
