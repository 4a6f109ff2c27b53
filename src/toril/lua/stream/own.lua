#!lua flags=allow-oom
-- What a consumer has and does not know of: the reply that brought it was lost.
-- keyspace: stream
-- keys: base meta
-- args: consumer, how many it may have at most, then level and entry of each that it knows
-- result: the others as {level, entry, delivery, id, fields}
-- include: stream/_stream
-- include: stream/_end
-- include: stream/_claim

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local consumer, most, known, rows, missing = ARGV[1], ARGV[2], {}, {}, {}
for at = 3, #ARGV, 2 do
  known[ARGV[at] .. ':' .. ARGV[at + 1]] = true
end
for number = 0, q.levels - 1 do
  local level = text(number)
  local stream = stream_of(level)
  for _, row in ipairs(with_group(stream, 'XPENDING', stream, q.group, '-', '+', most, consumer)) do
    if not known[level .. ':' .. row[1]] then
      local entry = call('XRANGE', stream, row[1], row[1])[1]
      if entry then
        receive(level, entry[1], entry[2], consumer, rows)
      else
        call('XACK', stream, q.group, row[1])
        miss(level, row[1], missing)
      end
    end
  end
end
write_acks()
write_tallies()
return rows
