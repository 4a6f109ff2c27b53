#!lua flags=allow-oom
-- Trim what every reader is done with; nothing where no reader is registered.
-- keyspace: partition
-- keys: base head
-- args: a reader that must be registered, or ''; ms that entries are kept for at least; entries at most
-- result: entries removed, the last ordinal that is trimmed now, and the readers that hold up the rest
-- include: log/_partition
-- include: log/_readers

local p, needed, age, most = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local BLOBS = 1000
local now = now_ms()
local floor, floor_id, holding, seen = math.huge, nil, {}, needed == ''
local readers = call('HGETALL', p .. 'readers')
for i = 1, #readers, 2 do
  local its = parse_reader(readers[i + 1])
  if its.expires > 0 and its.expires < now then
    call('HDEL', p .. 'readers', readers[i])
  else
    seen = seen or readers[i] == needed
    if its.ordinal < floor then
      floor, floor_id, holding = its.ordinal, its.id, { readers[i] }
    elseif its.ordinal == floor then
      holding[#holding + 1] = readers[i]
    end
  end
end
local trimmed, removed = trimmed_of(p), 0
if not floor_id or not seen then
  return { '0', text(trimmed), {} }
end
if floor > trimmed then
  local ms, seq = string.match(floor_id, '^(%d+)%-(%d+)$')
  local first_kept = ms .. '-' .. text(seq + 1)
  if age > 0 and tonumber(ms) >= now - age then
    first_kept = text(math.max(now - age, 0)) .. '-0'
  end
  removed = call('XTRIM', p .. 'entries', 'MINID', '~', first_kept, 'LIMIT', most)
  local first = call('XRANGE', p .. 'entries', '-', '+', 'COUNT', 1)[1]
  trimmed = first and ordinal_of(first) - 1 or tonumber(call('HGET', p .. 'head', 'ordinal') or '0')
  call('HSET', p .. 'head', 'trimmed', trimmed)
end
for _, ordinal in ipairs(call('ZRANGEBYSCORE', p .. 'blobs', '-inf', trimmed, 'LIMIT', 0, BLOBS)) do
  call('UNLINK', p .. 'b:' .. ordinal)
  call('ZREM', p .. 'blobs', ordinal)
end
return { text(removed), text(trimmed), holding }
