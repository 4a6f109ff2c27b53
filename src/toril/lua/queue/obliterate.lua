#!lua flags=allow-oom
-- Remove a paused queue with everything in it, a bounded number of jobs at a time.
-- keyspace: queue
-- keys: base meta
-- args: how many, 1 to remove active jobs too
-- result: 1 when there is more, 0 when it is gone, -1 when it is not paused, -2 when jobs are active
-- include: queue/_queue
-- include: queue/_remove

local q, left = KEYS[1], tonumber(ARGV[1])
if call('HEXISTS', q .. 'meta', 'paused') == 0 then
  return -1
end
local active = call('LRANGE', q .. 'active', 0, left - 1)
if #active > 0 and ARGV[2] ~= '1' then
  return -2
end

local function remove_all(ids)
  for _, id in ipairs(ids) do
    remove_job(q, id, true, true)
  end
  left = left - #ids
  return left <= 0
end

local function clear_list(key, ids)
  local done = remove_all(ids)
  call('LTRIM', key, #ids, -1)
  return done
end

local function clear_set(key)
  local ids = call('ZRANGE', key, 0, left - 1)
  local done = remove_all(ids)
  in_steps(ids, function(...)
    call('ZREM', key, ...)
  end)
  return done
end

for _, id in ipairs(active) do
  call('DEL', q .. id .. ':lock')
end
if clear_list(q .. 'active', active) or clear_set(q .. 'delayed') then
  return 1
end
local schedulers = call('ZRANGE', q .. 'repeat', 0, left - 1)
for _, id in ipairs(schedulers) do
  call('DEL', q .. 'repeat:' .. id)
end
in_steps(schedulers, function(...)
  call('ZREM', q .. 'repeat', ...)
end)
left = left - #schedulers
if
  left <= 0
  or clear_set(q .. 'completed')
  or clear_list(q .. 'paused', call('LRANGE', q .. 'paused', 0, left - 1))
  or clear_set(q .. 'prioritized')
  or clear_set(q .. 'failed')
then
  return 1
end
call(
  'DEL',
  q .. 'events',
  q .. 'delay',
  q .. 'stalled-check',
  q .. 'stalled',
  q .. 'id',
  q .. 'pc',
  q .. 'meta',
  q .. 'metrics:completed',
  q .. 'metrics:completed:data',
  q .. 'metrics:failed',
  q .. 'metrics:failed:data'
)
return 0
