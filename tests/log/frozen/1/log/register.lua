#!lua flags=allow-oom
-- Register a reader, whose floor no trimming passes; one that is registered stays where it is.
-- keyspace: partition
-- keys: base head
-- args: reader, ms it may be silent (0: for ever, and it gets a consumer group), 'first', 'tail', or an
--       ordinal with the id as the next argument
-- result: ordinal, id, fence
-- include: log/_partition
-- include: log/_readers

local p, name, ttl, from = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local its = reader_of(p, name)
if its then
  if its.expires > 0 and ttl > 0 then
    its.expires = now_ms() + ttl
    save_reader(p, name, its)
  end
  return { text(its.ordinal), its.id, text(its.fence) }
end
its = { ordinal = trimmed_of(p), id = '0-0', fence = 0, expires = ttl > 0 and now_ms() + ttl or 0 }
if from == 'tail' then
  local last = call('XREVRANGE', p .. 'entries', '+', '-', 'COUNT', 1)[1]
  if last then
    its.ordinal, its.id = ordinal_of(last), last[1]
  end
elseif from ~= 'first' then
  local wanted = tonumber(from)
  if wanted ~= its.ordinal then
    local wrong = wrong_place(p, wanted, ARGV[4])
    if wrong then
      return redis.error_reply(wrong)
    end
    its.ordinal, its.id = wanted, ARGV[4]
  end
end
save_reader(p, name, its)
if ttl == 0 then
  call('XGROUP', 'CREATE', p .. 'entries', name, its.id, 'MKSTREAM', 'ENTRIESREAD', its.ordinal)
end
return { text(its.ordinal), its.id, text(its.fence) }
