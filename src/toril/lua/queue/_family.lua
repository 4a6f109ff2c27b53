-- Removing a job with its children.

local STATES = { 'completed', 'waiting-children', 'delayed', 'failed', 'prioritized' }

-- Take a job out of the state it is in; the state's name.
local function leave_state(q, id)
  for _, state in ipairs(STATES) do
    if call('ZREM', q .. state, id) == 1 then
      return state
    end
  end
  for _, list in ipairs({ 'wait', 'paused', 'active' }) do
    if call('LREM', q .. list, 1, id) == 1 then
      return list
    end
  end
  return 'unknown'
end

-- Whether a job, or (with `children`) a job it waits for, is being worked on.
local function is_locked(q, id, children)
  if call('EXISTS', q .. id .. ':lock') == 1 then
    return true
  end
  if children then
    for _, child in ipairs(call('SMEMBERS', q .. id .. ':dependencies')) do
      local cq, child_id = split_key(child)
      if is_locked(cq, child_id, true) then
        return true
      end
    end
  end
  return false
end

local remove_family

-- `how`: children (remove them too), unprocessed_only (spare what is done, failed or being worked on).
local function remove_children(key, how)
  local function each(children, step)
    for place = 1, #children, step do
      local cq, id = split_key(children[place])
      remove_family(cq, id, key, how)
    end
  end
  if not how.unprocessed_only then
    each(call('HGETALL', key .. ':processed'), 2)
    each(call('HGETALL', key .. ':failed'), 2)
    each(call('ZRANGE', key .. ':unsuccessful', 0, -1), 1)
  end
  each(call('SMEMBERS', key .. ':dependencies'), 1)
end

remove_family = function(q, id, parent_key, how)
  local key = q .. id
  if how.unprocessed_only and (is_locked(q, id, false) or call('ZSCORE', q .. 'failed', id)) then
    return
  end
  leave_parent(key, parent_key, false)
  if how.children then
    remove_children(key, how)
  end
  local state = leave_state(q, id)
  free_dedup_id(q, id)
  if delete_job(key) > 0 then
    event_and_trim(q, 'removed', 'jobId', id, 'prev', state)
  end
end
