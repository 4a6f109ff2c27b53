#!lua
-- A scheduled job was taken: make the scheduler's next one (a.11).
-- keyspace: queue
-- keys: base meta
-- args: scheduler id, the job that was taken, now, next run for a pattern or '', options for the next job (JSON),
--       data for it when the scheduler has none
-- result: the next job's id, or nil when there is nothing to do
-- include: queue/_queue

local q, scheduler, producer, now = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local previous = tonumber(call('ZSCORE', q .. 'repeat', scheduler) or nil)
if not previous then
  return nil
end
local record = q .. 'repeat:' .. scheduler
local own = call('HMGET', record, 'name', 'data', 'every', 'offset')
local options = cjson.decode(ARGV[5])
local every = tonumber(own[3]) or (options['repeat'] and tonumber(options['repeat']['every']))
local due = tonumber(ARGV[4])
if every then
  due = previous + every
  if due < now then
    local offset = tonumber(own[4]) or (options['repeat'] and tonumber(options['repeat']['offset'])) or 0
    due = math.floor(now / every) * every + every + offset
  end
  due = math.floor(due)
end
local function run_id(time)
  return string.format('repeat:%s:%.0f', scheduler, time)
end
if producer ~= run_id(previous) then
  return nil
end
local id = run_id(due)
local key = q .. id
local limit = event_limit(q)
if call('EXISTS', key) == 1 then
  event_and_trim(q, 'duplicated', 'jobId', id)
  return nil
end
call('ZADD', q .. 'repeat', due, scheduler)
call('HINCRBY', record, 'ic', 1)
call('INCR', q .. 'id')
local data = own[2] or ARGV[6]
if data ~= '' and data ~= '{}' then
  call('HSET', record, 'data', data)
end
local wait_ms = math.max(0, due - now)
options['delay'], options['jobId'] = wait_ms, id
local priority = tonumber(options['priority']) or 0
call(
  'HSET', key,
  'name', own[1],
  'data', data == '' and '{}' or data,
  'opts', cjson.encode(options),
  'timestamp', now,
  'delay', wait_ms,
  'priority', priority,
  'rjk', scheduler
)
event(q, 'added', 'jobId', id, 'name', own[1])
if wait_ms > 0 then
  local score, time = delayed_score(q, now, wait_ms)
  call('ZADD', q .. 'delayed', score, id)
  event_and_trim(q, 'delayed', 'jobId', id, 'delay', time)
  mark_delayed(q)
else
  local at = gate(q)
  if priority == 0 then
    push(q, at.list, at.blocked, id, options['lifo'] and 'RPUSH' or 'LPUSH')
  else
    push_by_priority(q, priority, at.blocked, id)
  end
  event_and_trim(q, 'waiting', 'jobId', id)
end
call('HSET', q .. producer, 'nrjid', id)
return id
