#!lua
-- Add jobs, all or none.
-- keyspace: queue
-- keys: base meta
-- args: for each job eight: id or '', name, data, options, timestamp, delay, priority, and '' or what else
--       there is to say, as JSON: lifo, waits (for children), parentKey, parent, rjk, de
-- result: the ids (of the job that stands in the way, where there is one), or {place of the job, code of a.9}
-- include: queue/_queue
-- include: queue/_parent
-- include: queue/_remove

local q = KEYS[1]
local WIDTH = 8

-- A job with this id exists: it gets the parent, if it has no other one that is alive.
local function meet_again(key, id, more, timestamp)
  local parent_key = more.parentKey
  local its = call('HGET', key, 'parentKey')
  if parent_key and (not its or its == parent_key) then
    if call('ZSCORE', q .. 'completed', id) then
      local pq, parent_id = split_key(parent_key)
      child_completed(parent_key, pq, parent_id, key, call('HGET', key, 'returnvalue'), timestamp)
    else
      call('SADD', parent_key .. ':dependencies', key)
    end
    call('HSET', key, 'parentKey', parent_key, 'parent', more.parent)
  end
  event_and_trim(q, 'duplicated', 'jobId', id)
end

local function tell_deduplicated(id, dedup_id, other)
  event_and_trim(q, 'debounced', 'jobId', id, 'debounceId', dedup_id)
  event_and_trim(q, 'deduplicated', 'jobId', id, 'deduplicationId', dedup_id, 'deduplicatedJobId', other)
end

-- The id of the job that a deduplication id belongs to, if this one must give way (a.13).
local function deduplicate(id, rule)
  local key = q .. 'de:' .. rule.id
  local ttl = rule.ttl and rule.ttl > 0 and rule.ttl
  local owner = call('GET', key)
  if not owner then
    if ttl then
      call('SET', key, id, 'PX', ttl)
    else
      call('SET', key, id)
    end
    return nil
  end
  if rule.replace then
    if call('ZREM', q .. 'delayed', owner) == 0 then
      return owner
    end
    delete_job(q .. owner)
    event(q, 'removed', 'jobId', owner, 'prev', 'delayed')
    tell_deduplicated(id, rule.id, owner)
    if ttl and rule.extend then
      call('SET', key, id, 'PX', ttl)
    elseif ttl then
      call('SET', key, id, 'KEEPTTL')
    else
      call('SET', key, id)
    end
    return nil
  end
  if ttl and rule.extend then
    call('SET', key, owner, 'PX', ttl)
  end
  tell_deduplicated(owner, rule.id, id)
  return owner
end

local function store(key, id, name, data, options, timestamp, wait_ms, priority, more)
  local fields = {
    'name', name, 'data', data, 'opts', options, 'timestamp', timestamp, 'delay', wait_ms, 'priority', priority,
  }
  local function also(field, value)
    if value then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  also('parentKey', more.parentKey)
  also('parent', more.parent)
  also('rjk', more.rjk)
  also('deid', more.de and more.de.id)
  call('HSET', key, unpack(fields))
  event(q, 'added', 'jobId', id, 'name', name)
end

local NOTHING_MORE = {}

local function more_of(first)
  local text = ARGV[first + 7]
  return text == '' and NOTHING_MORE or cjson.decode(text)
end

-- Look before anything is written, so that a batch is added whole or not at all. Jobs of one batch can be in
-- each other's way, so what becomes of those before is kept: who will have arrived, who will be gone.
local there, parents, owners, delayed = {}, {}, {}, {}

local function will_be_there(key)
  if there[key] == nil then
    there[key] = call('EXISTS', key) == 1
  end
  return there[key]
end

local function parent_of(key)
  return parents[key] or (call('HGET', key, 'parentKey') or nil)
end

-- Whether a new job gives way to the owner of its deduplication id (see `deduplicate`).
local function will_give_way(id, rule)
  local owner = owners[rule.id] or call('GET', q .. 'de:' .. rule.id)
  if owner and not (rule.replace and (delayed[owner] or call('ZSCORE', q .. 'delayed', owner))) then
    return true
  end
  if owner then
    there[q .. owner], delayed[owner] = false, nil
  end
  owners[rule.id] = id
  return false
end

local function refusal(place, code)
  if code == -7 and #ARGV == WIDTH then
    call('INCR', q .. 'id') -- as BullMQ has counted it by now
    event_limit(q)
  end
  return { place, code }
end

for first = 1, #ARGV, WIDTH do
  local place, more, custom = (first - 1) / WIDTH + 1, more_of(first), ARGV[first] ~= ''
  local id = custom and ARGV[first] or ('#' .. place)
  local key, parent_key = q .. id, more.parentKey
  if parent_key and not will_be_there(parent_key) then
    return refusal(place, -5)
  end
  if custom and will_be_there(key) then
    local its = parent_key and parent_of(key)
    if its and its ~= parent_key and will_be_there(its) then
      return refusal(place, -7)
    end
    parents[key] = its or parent_key or parents[key]
  elseif (custom or more.de) and not (more.de and will_give_way(id, more.de)) then
    there[key], parents[key] = true, parent_key
    delayed[id] = tonumber(ARGV[first + 5]) > 0 and not more.waits or nil
  end
end

local limit = event_limit(q)
local here = gate(q)
local ids, arrived, any_waits = {}, {}, false
local counted = call('INCRBY', q .. 'id', #ARGV / WIDTH) - #ARGV / WIDTH

for first = 1, #ARGV, WIDTH do
  local id, name, data, options, timestamp = unpack(ARGV, first, first + 4)
  local wait_ms, priority, more = tonumber(ARGV[first + 5]), tonumber(ARGV[first + 6]), more_of(first)
  local custom = id ~= ''
  counted = counted + 1
  if not custom then
    id = string.format('%.0f', counted)
  end
  local key = q .. id
  local owner
  if custom and call('EXISTS', key) == 1 then
    meet_again(key, id, more, tonumber(timestamp))
    owner = id
  elseif more.de then
    owner = deduplicate(id, more.de)
  end
  if not owner then
    store(key, id, name, data, options, timestamp, ARGV[first + 5], ARGV[first + 6], more)
    if more.waits then
      call('ZADD', q .. 'waiting-children', timestamp, id)
      call('XADD', q .. 'events', 'MAXLEN', '~', limit, '*', 'event', 'waiting-children', 'jobId', id)
    elseif wait_ms > 0 then
      local score, due = delayed_score(q, tonumber(timestamp), wait_ms)
      call('ZADD', q .. 'delayed', score, id)
      call('XADD', q .. 'events', 'MAXLEN', '~', limit, '*', 'event', 'delayed', 'jobId', id, 'delay', due)
      mark_delayed(q)
    else
      any_waits = true
      if priority > 0 then
        push_by_priority(q, priority, true, id)
      elseif more.lifo then
        call('RPUSH', here.list, id)
      else
        arrived[#arrived + 1] = id
      end
      call('XADD', q .. 'events', 'MAXLEN', '~', limit, '*', 'event', 'waiting', 'jobId', id)
    end
    if more.parentKey then
      call('SADD', more.parentKey .. ':dependencies', key)
    end
  end
  ids[#ids + 1] = owner or id
end
in_steps(arrived, function(...)
  call('LPUSH', here.list, ...)
end)
if any_waits then
  mark(q, here.blocked)
end
return ids
