#!lua flags=no-writes
-- How a partition stands, all at one moment: as our own books have it, and as standard tools see it.
-- keyspace: partition
-- keys: base head
-- args: none
-- result: head's ordinal and trimmed, ordinals of the first and last entry or '', XINFO STREAM, XINFO GROUPS,
--         readers
local p = KEYS[1]
local head = redis.call('HMGET', p .. 'head', 'ordinal', 'trimmed')
if redis.call('EXISTS', p .. 'entries') == 0 then
  return { head[1] or '0', head[2] or '0', '', '', {}, {}, redis.call('HGETALL', p .. 'readers') }
end
local first = redis.call('XRANGE', p .. 'entries', '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', p .. 'entries', '+', '-', 'COUNT', 1)[1]
return {
  head[1] or '0',
  head[2] or '0',
  first and first[2][2] or '',
  last and last[2][2] or '',
  redis.call('XINFO', 'STREAM', p .. 'entries'),
  redis.call('XINFO', 'GROUPS', p .. 'entries'),
  redis.call('HGETALL', p .. 'readers'),
}
