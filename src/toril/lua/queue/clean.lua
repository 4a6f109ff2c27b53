#!lua flags=allow-oom
-- Remove jobs of one state that are old enough. Spares the next run of a scheduler, and jobs being worked on.
-- keyspace: queue
-- keys: base meta
-- args: state (a key suffix), newest timestamp to remove, how many at most (0 for all)
-- result: the ids removed
-- include: queue/_queue
-- include: queue/_remove

local q, state, newest, most = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local key = q .. state
local gone = {}

local AGE = {
  active = { 'finishedOn', 'processedOn', 'timestamp' },
  wait = { 'finishedOn', 'processedOn', 'timestamp' },
  paused = { 'finishedOn', 'processedOn', 'timestamp' },
  delayed = { 'processedOn', 'timestamp' },
  prioritized = { 'timestamp' },
}

-- A job's time decides: the first of the fields that it has. One without any is old.
local function is_old(id)
  for _, time in ipairs(call('HMGET', q .. id, unpack(AGE[state]))) do
    if time then
      return tonumber(time) <= newest
    end
  end
  return true
end

local function full()
  return most > 0 and #gone >= most
end

local function remove(id)
  remove_job(q, id, true, true)
  gone[#gone + 1] = id
end

if state == 'active' or state == 'wait' or state == 'paused' then
  -- The oldest are at the tail. What goes is first replaced by '', so that places stay as they are.
  local ids = call('LRANGE', key, most > 0 and -most or 0, -1)
  for place, id in ipairs(ids) do
    if full() then
      break
    end
    local free = state ~= 'active' or call('EXISTS', q .. id .. ':lock') == 0
    if free and not is_scheduled(q, id) and is_old(id) then
      call('LSET', key, place - 1 - #ids, '')
      remove(id)
    end
  end
  call('LREM', key, 0, '')
else
  local by_job = AGE[state] ~= nil
  local range = { 'ZRANGEBYSCORE', key, 0, by_job and '+inf' or newest }
  if most > 0 then
    range[5], range[6], range[7] = 'LIMIT', 0, most
  end
  for _, id in ipairs(call(unpack(range))) do
    if full() then
      break
    end
    if not by_job or (not is_scheduled(q, id) and is_old(id)) then
      remove(id)
    end
  end
  in_steps(gone, function(...)
    call('ZREM', key, ...)
  end)
end
event(q, 'cleaned', 'count', #gone)
return gone
