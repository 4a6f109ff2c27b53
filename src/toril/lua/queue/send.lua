#!lua
-- Send jobs that may be sent again under their id: the last data counts, and no send is lost (ADR 0008).
--
-- An id has two places, the id itself and `<id>~2` (more only where somebody has run both at once), so that one
-- can wait while the other is worked on. What is left is always what calls of BullMQ leave, too:
--   no job of the id             add
--   it waits                     updateData
--   it is delayed                updateData and changeDelay
--   it is active                 a flow: the other place is its parent, which BullMQ starts when it has finished
--   it is completed or failed    remove and add
-- keyspace: queue
-- keys: base meta
-- args: now, name, options, delay, longest delay since the first send, then for each job its id or '', and data
-- result: the ids of the jobs that carry the data
-- include: queue/_queue
-- include: queue/_remove

local q, now, name, options = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local delay, longest = tonumber(ARGV[4]), tonumber(ARGV[5])

-- What a run has left in a job. Its next run is another one's.
local RUN = {
  'ats', 'atm', 'attemptsMade', 'stc', 'defa', 'pb', 'tm', 'processedOn', 'finishedOn', 'progress', 'returnvalue',
  'failedReason', 'stacktrace',
}

local function options_of(id)
  local quoted = string.gsub(cjson.encode(id), '\\/', '/')
  return '{"jobId":' .. quoted .. ',' .. string.sub(options, 2)
end

-- A job and where it is: none, waiting (also paused and by priority), delayed, waiting-children, active, completed
-- or failed. Who is in no set and not active waits: a long list of waiting jobs is not searched.
local function look(id)
  local own = call('HMGET', q .. id, 'name', 'timestamp', 'ats', 'parentKey')
  local found = { id = id, key = q .. id, first = tonumber(own[2]) or now, began = own[3], parent = own[4] or '' }
  if not own[1] then
    found.state = 'none'
    return found
  end
  for _, state in ipairs({ 'delayed', 'waiting-children', 'completed', 'failed' }) do
    if call('ZSCORE', q .. state, id) then
      found.state = state
      return found
    end
  end
  found.state = call('LPOS', q .. 'active', id) and 'active' or 'waiting'
  return found
end

-- The delay starts again, but ends when the first send is `longest` ago.
local function delay_since(first)
  return math.max(0, math.min(delay, first + longest - now))
end

local function replace(job, data)
  call('HSET', job.key, 'data', data, 'opts', options_of(job.id))
  if job.began then -- it was tried before: this is another try's data, with all its attempts
    call('HDEL', job.key, unpack(RUN))
    call('HSET', job.key, 'timestamp', ARGV[1])
  elseif job.state == 'delayed' then
    local wait = delay_since(job.first)
    local score, due = delayed_score(q, now, wait)
    call('HSET', job.key, 'delay', wait)
    call('ZADD', q .. 'delayed', score, job.id)
    event_and_trim(q, 'delayed', 'jobId', job.id, 'delay', due)
    mark_delayed(q)
  elseif job.state == 'waiting-children' then
    call('HSET', job.key, 'delay', delay_since(job.first))
  end
end

local function remove_from(job)
  call('ZREM', q .. job.state, job.id)
  delete_job(job.key)
  event(q, 'removed', 'jobId', job.id, 'prev', job.state)
end

-- Where a job goes that nothing keeps from running.
local function start(id, wait)
  if wait > 0 then
    local score, due = delayed_score(q, now, wait)
    call('ZADD', q .. 'delayed', score, id)
    event_and_trim(q, 'delayed', 'jobId', id, 'delay', due)
    mark_delayed(q)
  else
    local at = gate(q)
    push(q, at.list, at.blocked, id, 'LPUSH')
    event_and_trim(q, 'waiting', 'jobId', id)
  end
end

local function add(id, data, opts)
  call(
    'HSET', q .. id, 'name', name, 'data', data, 'opts', opts, 'timestamp', ARGV[1], 'delay', ARGV[4], 'priority', 0
  )
  event(q, 'added', 'jobId', id, 'name', name)
end

-- To run when the others have finished, however they end: they become its children.
local function follow(id, others)
  call('ZADD', q .. 'waiting-children', now, id)
  event_and_trim(q, 'waiting-children', 'jobId', id)
  local link = cjson.encode({ id = id, queueKey = string.sub(q, 1, -2), rdof = true })
  for _, other in ipairs(others) do
    call('INCR', q .. 'id') -- BullMQ counts adding a child that exists, too
    call('SADD', q .. id .. ':dependencies', other.key)
    call('HSET', other.key, 'parentKey', q .. id, 'parent', link)
    event_and_trim(q, 'duplicated', 'jobId', other.id)
  end
end

local function send(id, data)
  local active, follower, free = {}, nil, nil
  local place = 1
  while true do
    local job = look(place == 1 and id or id .. '~' .. place)
    if job.state == 'waiting' or job.state == 'delayed' then
      if not follower and string.sub(job.parent, 1, #q) == q then
        local its = look(string.sub(job.parent, #q + 1))
        follower = its.state == 'waiting-children' and its or nil
      end
      if follower and job.parent == follower.key then
        -- It was tried, failed or lost its worker, and is to be tried again: with the last data. Then there is
        -- nothing left to follow.
        call('HDEL', job.key, 'parentKey', 'parent')
        remove_from(follower)
      end
      replace(job, data)
      return job.id
    elseif job.state == 'active' then
      if job.parent == '' or string.sub(job.parent, 1, #q + #id) == q .. id then
        active[#active + 1] = job -- one that is part of somebody's flow cannot be waited for
      end
    elseif job.state == 'waiting-children' then
      follower = follower or job
    else
      free = free or job
      if place > 1 and job.state == 'none' then
        break
      end
    end
    place = place + 1
  end
  if follower then
    replace(follower, data)
    if #active == 0 then -- those it waited for are gone, and nobody has told it
      call('ZREM', q .. 'waiting-children', follower.id)
      call('DEL', follower.key .. ':dependencies')
      start(follower.id, delay_since(follower.first))
    end
    return follower.id
  end
  if free.state ~= 'none' then
    remove_from(free)
  end
  call('INCR', q .. 'id')
  add(free.id, data, options_of(free.id))
  if #active > 0 then
    follow(free.id, active)
  else
    start(free.id, delay)
  end
  return free.id
end

event_limit(q)
local ids = {}
for at = 6, #ARGV, 2 do
  local id, data = ARGV[at], ARGV[at + 1]
  if id == '' then
    id = string.format('%.0f', call('INCR', q .. 'id'))
    add(id, data, options)
    start(id, delay)
    ids[#ids + 1] = id
  else
    ids[#ids + 1] = send(id, data)
  end
end
return ids
