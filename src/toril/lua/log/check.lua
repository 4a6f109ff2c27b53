#!lua flags=no-writes
-- Whether a place that a reader has come to is still there.
-- keyspace: partition
-- keys: base head
-- args: ordinal, id
-- result: the last ordinal
-- include: log/_partition
-- include: log/_readers

local p, ordinal, id = KEYS[1], tonumber(ARGV[1]), ARGV[2]
if ordinal > trimmed_of(p) then
  local wrong = wrong_place(p, ordinal, id)
  if wrong then
    return redis.error_reply('DIVERGED this log has diverged from the one that was read: ' .. wrong)
  end
end
return call('HGET', p .. 'head', 'ordinal') or '0'
