#!lua flags=no-writes
-- One job, wherever it is.
-- keyspace: stream
-- keys: base meta
-- args: id
-- result: {state, fields and values, where}: `where` is {level, entry, consumer, idle ms, delivery} of a running
--         job, {due ms} of a delayed one, {entry} of a dead letter, and empty else; the fields are those of an
--         entry, of a job's hash or of a dead letter, and of a job that has ended its outcome. {'missing'}
--         where there is none
-- include: stream/_stream
-- include: stream/_find

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local id = ARGV[1]
local hash = call('HGETALL', p .. 'j:' .. id)
if #hash > 0 then
  local its = as_table(hash)
  local level, entry = bound_to(id)
  if level then
    local row = redis.pcall('XPENDING', stream_of(level), q.group, entry, entry, 1)
    local pending = not row.err and row[1] or { '', '', 0, 0 }
    return { 'running', hash, { level, entry, pending[2], pending[3], pending[4] } }
  end
  local due = call('ZSCORE', p .. 'delayed', id)
  if due then
    return { 'delayed', hash, { due } }
  end
  local waits = its.k ~= '' and call('HGET', p .. 'heads', its.k) ~= id
  return { waits and 'waiting' or 'ready', hash, {} }
end
local letter = call('HGET', p .. 'buried', id)
if letter then
  local entry = call('XRANGE', p .. 'dead', letter, letter)[1]
  return { 'dead', entry and entry[2] or {}, { letter } }
end
local outcome = call('GET', p .. 'o:' .. id)
if outcome then
  return { 'ended', { 'outcome', outcome }, {} }
end
local level, entry, pending = find_entry(id)
if not entry then
  return { 'missing' }
elseif pending then
  return { 'running', entry[2], { level, id, pending[2], pending[3], pending[4] } }
elseif call('HEXISTS', p .. 'cancels', id) == 1 then
  return { 'missing' }
end
return { 'ready', entry[2], { level } }
