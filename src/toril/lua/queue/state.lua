#!lua flags=no-writes
-- The state a job is in.
-- keyspace: queue
-- keys: base meta
-- args: id
-- result: its name
-- include: queue/_queue

local q, id = KEYS[1], ARGV[1]
for _, state in ipairs({ 'completed', 'failed', 'delayed', 'prioritized' }) do
  if call('ZSCORE', q .. state, id) then
    return state
  end
end
if call('LPOS', q .. 'active', id) then
  return 'active'
end
if call('LPOS', q .. 'wait', id) or call('LPOS', q .. 'paused', id) then
  return 'waiting'
end
if call('ZSCORE', q .. 'waiting-children', id) then
  return 'waiting-children'
end
return 'unknown'
