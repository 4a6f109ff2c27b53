#!lua flags=no-writes
-- How a partition stands.
-- keyspace: partition
-- keys: base head
-- args: none
-- result: ms now, head, length, first entry's id or '', last entry's id or '', hot aggregates, readers
-- include: log/_partition

local p = KEYS[1]
local first = call('XRANGE', p .. 'entries', '-', '+', 'COUNT', 1)[1]
local last = call('XREVRANGE', p .. 'entries', '+', '-', 'COUNT', 1)[1]
return {
  string.format('%.0f', now_ms()),
  call('HGETALL', p .. 'head'),
  call('XLEN', p .. 'entries'),
  first and first[1] or '',
  last and last[1] or '',
  call('ZCARD', p .. 'activity'),
  call('HGETALL', p .. 'readers'),
}
