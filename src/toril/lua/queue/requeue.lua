#!lua flags=allow-oom
-- Move jobs of one state back to waiting, a bounded number at a time. Priorities are not looked at, as in
-- BullMQ.
-- keyspace: queue
-- keys: base meta
-- args: state (completed, failed, delayed), how many, highest score
-- result: 1 when there may be more, else 0
-- include: queue/_queue

local q, state, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local at = gate(q)
local ids = call('ZRANGEBYSCORE', q .. state, 0, ARGV[3], 'LIMIT', 0, most)
if #ids > 0 then
  for _, id in ipairs(ids) do
    if state == 'failed' then
      call('HDEL', q .. id, 'finishedOn', 'processedOn', 'failedReason')
    elseif state == 'completed' then
      call('HDEL', q .. id, 'finishedOn', 'processedOn', 'returnvalue')
    end
  end
  for _, id in ipairs(ids) do
    event_and_trim(q, 'waiting', 'jobId', id, 'prev', state)
  end
  in_steps(ids, function(...)
    call('ZREM', q .. state, ...)
    call('LPUSH', at.list, ...)
  end)
  mark(q, at.blocked)
end
return #ids >= most and 1 or 0
