#!lua flags=allow-oom
-- Cancel a job: one that waits is removed, one that runs is stopped by its worker.
-- keyspace: stream
-- keys: base meta
-- args: id, ms that the outcome is kept for, the outcome
-- result: 'removed', 'asked' (its worker has been told), 'missing'
-- include: stream/_stream
-- include: stream/_end
-- include: stream/_find

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local id, ttl, outcome = ARGV[1], ARGV[2], ARGV[3]

local function ask_worker()
  call('HSET', p .. 'cancels', id, '1')
  call('SPUBLISH', p .. 'news', '')
  return 'asked'
end

local its = as_table(call('HGETALL', p .. 'j:' .. id))
if its.d and bound_to(id) then
  return ask_worker()
end
if its.d then
  local is_head = its.k ~= '' and call('HGET', p .. 'heads', its.k) == id
  if call('ZREM', p .. 'delayed', id) == 0 then
    if its.k ~= '' and not is_head then
      call('LREM', p .. 'm:' .. its.k, 1, id)
    else
      local ready = p .. 'r:' .. its.l .. ':' .. its.t
      call('LREM', ready, 1, id) -- its token is spent when it is taken
      if call('EXISTS', ready) == 0 then
        call('LREM', p .. 'ring:' .. its.l, 1, its.t)
      end
    end
  end
  leave(id, true, is_head and its.k or '', #its.d)
  write_acks()
else
  local _, entry, pending = find_entry(id)
  if not entry or call('HEXISTS', p .. 'cancels', id) == 1 then
    return entry and (pending and 'asked' or 'removed') or 'missing'
  end
  if pending then
    return ask_worker()
  end
  -- It leaves the stream, and the counters, when it is taken: to delete what nobody was given makes lag unknown.
  call('HSET', p .. 'cancels', id, '1')
end
tally('cancelled', 1)
keep_result(id, ttl, outcome)
write_tallies()
return 'removed'
