#!lua flags=allow-oom
-- Find jobs whose worker is gone, and put them back in front (a.6). One sweep per interval, whoever calls.
-- keyspace: queue
-- keys: base meta
-- args: how often a job may stall, now, interval ms
-- result: the ids that were put back
-- include: queue/_queue

local q, allowed, now, interval = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
if call('EXISTS', q .. 'stalled-check') == 1 then
  return {}
end
call('SET', q .. 'stalled-check', now, 'PX', interval)
trim_events(q)

local function put_back(id)
  local key = q .. id
  local times = call('HINCRBY', key, 'stc', 1)
  if times > allowed then
    local options = call('HGET', key, 'opts')
    if not (options and cjson.decode(options)['repeat']) then
      call('HSET', key, 'defa', 'job stalled more than allowable limit')
    end
  end
  local at = gate(q)
  push(q, at.list, at.blocked, id, 'RPUSH')
  event(q, 'waiting', 'jobId', id, 'prev', 'active')
  event(q, 'stalled', 'jobId', id)
end

local found = {}
local suspects = call('SMEMBERS', q .. 'stalled')
call('DEL', q .. 'stalled')
for _, id in ipairs(suspects) do
  if string.sub(id, 1, 2) == '0:' then
    call('LREM', q .. 'active', 1, id)
  elseif call('EXISTS', q .. id .. ':lock') == 0 and call('LREM', q .. 'active', 1, id) > 0 then
    put_back(id)
    found[#found + 1] = id
  end
end
in_steps(call('LRANGE', q .. 'active', 0, -1), function(...)
  call('SADD', q .. 'stalled', ...)
end)
return found
