#!lua flags=allow-oom
-- Move a reader's floor up to an entry it is done with.
-- keyspace: partition
-- keys: base head
-- args: reader, fence, ordinal, id, ms it may be silent (0: for ever)
-- result: 1 moved, 0 was there already
-- include: log/_partition
-- include: log/_readers

local p, name, fence, ordinal, id = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local its = reader_of(p, name)
if not its then
  return redis.error_reply('GONE this reader is not registered: it was retired, or silent for too long')
end
if fence ~= its.fence then
  return redis.error_reply('FENCED another one reads for this reader now')
end
if ordinal < its.ordinal then
  return redis.error_reply('BACKWARDS it is at ordinal ' .. text(its.ordinal) .. ', past ' .. text(ordinal))
end
if its.expires > 0 then
  its.expires = now_ms() + tonumber(ARGV[5])
end
local moves = ordinal > its.ordinal
if moves then
  local wrong = wrong_place(p, ordinal, id)
  if wrong then
    return redis.error_reply(wrong)
  end
  its.ordinal, its.id = ordinal, id
end
save_reader(p, name, its)
if moves and its.expires == 0 then
  call('XGROUP', 'SETID', p .. 'entries', name, id, 'ENTRIESREAD', ordinal)
end
return moves and 1 or 0
