#!lua flags=allow-oom
-- Take over what other workers have let go: at once where a worker is no longer heard of, and else what has been
-- idle for too long. Consumers that are gone and have nothing are forgotten.
-- keyspace: stream
-- keys: base meta
-- args: consumer, ms of idleness, how many jobs it wants, how many suspects among them at most; then for each
--       level where to go on looking
-- result: {the jobs as {level, entry, delivery, id, fields}, for each level where to go on, entries that are
--         lost: deleted before they were done}
-- include: stream/_stream
-- include: stream/_end
-- include: stream/_claim

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local consumer, idle, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3])
local rows, cursors, missing = {}, {}, {}
suspects_wanted = tonumber(ARGV[4])

-- What a consumer has that is no longer heard of.
local function inherit(level, stream, from)
  local entries = {}
  for _, row in ipairs(call('XPENDING', stream, q.group, '-', '+', wanted - #rows, from)) do
    entries[#entries + 1] = row[1]
  end
  if #entries == 0 then
    return
  end
  local found = {}
  for _, entry in ipairs(call('XCLAIM', stream, q.group, consumer, 0, unpack(entries))) do
    if entry then
      found[entry[1]] = entry[2]
    end
  end
  for _, entry in ipairs(entries) do
    if found[entry] then
      receive(level, entry, found[entry], consumer, rows)
    else
      miss(level, entry, missing)
    end
  end
end

for number = 0, q.levels - 1 do
  local level = text(number)
  local stream = stream_of(level)
  local cursor = ARGV[5 + number] or '0-0'
  for _, row in ipairs(with_group(stream, 'XINFO', 'CONSUMERS', stream, q.group)) do
    local its = as_table(row)
    if its.name ~= consumer and call('EXISTS', p .. 'hb:' .. its.name) == 0 then
      if its.pending == 0 then
        call('XGROUP', 'DELCONSUMER', stream, q.group, its.name)
      elseif #rows < wanted then
        inherit(level, stream, its.name)
      end
    end
  end
  if #rows < wanted then
    local reply = call('XAUTOCLAIM', stream, q.group, consumer, idle, cursor, 'COUNT', wanted - #rows)
    cursor = reply[1]
    for _, entry in ipairs(reply[2]) do
      receive(level, entry[1], entry[2], consumer, rows)
    end
    for _, entry in ipairs(reply[3] or {}) do
      miss(level, entry, missing)
    end
  end
  cursors[#cursors + 1] = cursor
end
write_acks()
write_tallies()
return { rows, cursors, missing }
