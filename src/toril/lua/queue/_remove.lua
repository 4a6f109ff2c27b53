-- Removing jobs, and letting go of what waits for them.

local function delete_job(key)
  return call(
    'DEL',
    key,
    key .. ':logs',
    key .. ':dependencies',
    key .. ':processed',
    key .. ':failed',
    key .. ':unsuccessful'
  )
end

-- To the front of its queue, whatever its priority and delay.
local function release_parent(pq, id, announce)
  local at = gate(pq)
  push(pq, at.list, at.blocked, id, 'RPUSH')
  if announce then
    event(pq, 'waiting', 'jobId', id, 'prev', 'waiting-children')
  end
end

-- A child goes away: its parent no longer waits for it. With `hard`, a parent in the same queue that
-- waited for nothing else goes away too. Whether there was anything to let go of.
local function leave_parent(key, parent_key, hard, q, dedup_id)
  if not parent_key then
    local own = call('HMGET', key, 'parentKey', 'deid')
    parent_key, dedup_id = own[1], own[2]
    if not parent_key or parent_key == '' or call('EXISTS', parent_key) == 0 then
      return false
    end
  end
  if call('SREM', parent_key .. ':dependencies', key) == 0 then
    return false
  end
  if call('SCARD', parent_key .. ':dependencies') == 0 then
    local pq, id = split_key(parent_key)
    if call('ZREM', pq .. 'waiting-children', id) == 1 then
      if not hard then
        release_parent(pq, id, true)
      elseif pq == q then
        leave_parent(parent_key, nil, hard, q)
        delete_job(parent_key)
        if dedup_id then
          call('DEL', pq .. 'de:' .. dedup_id)
        end
      else
        release_parent(pq, id, false)
      end
    end
  end
  return true
end

-- A job that is removed gives its deduplication id back.
local function free_dedup_id(q, id)
  local dedup_id = call('HGET', q .. id, 'deid')
  if dedup_id and call('GET', q .. 'de:' .. dedup_id) == id then
    call('DEL', q .. 'de:' .. dedup_id)
  end
end

local function remove_job(q, id, hard, free_dedup)
  leave_parent(q .. id, nil, hard, q)
  if free_dedup then
    free_dedup_id(q, id)
  end
  delete_job(q .. id)
end

-- Whether a job is the next iteration of a scheduler, which must not go away.
local function is_scheduled(q, id)
  local scheduler = call('HGET', q .. id, 'rjk')
  local due = scheduler and call('ZSCORE', q .. 'repeat', scheduler)
  return due and id == 'repeat:' .. scheduler .. ':' .. due
end
