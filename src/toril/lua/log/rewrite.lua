#!lua
-- One step of erasing a tenant from the stream: entries are copied, with their ids, into a stream that takes
-- the place of the old one at the end. In the place of the tenant's entries stand empty ones, so that
-- ordinals have no gap and every reader's position and lag stay right.
-- keyspace: partition
-- keys: base head
-- args: tenant, id to go on after ('' to begin), entries at most, a word of whoever does it
-- result: 'more' or 'done', id to go on after, entries of the tenant in this step;
--         'begin' another one is at it, or was: begin again
-- include: log/_partition
-- include: log/_readers

local p, prefix, after, most = KEYS[1], ARGV[1] .. ':', ARGV[2], tonumber(ARGV[3])
local from, to = p .. 'entries', p .. 'rewrite'
if call('EXISTS', from) == 0 then
  return { 'done', '', 0 }
end
-- One at a time, because there is one copy. Who is silent for long is taken to be gone.
local SILENT = 10000
local now, word = now_ms(), ARGV[4]
local owner, seen = string.match(call('HGET', p .. 'head', 'rewriting') or '', '^(%S+) (%d+)$')
if owner ~= word and (after ~= '' or owner and now - seen < SILENT) then
  return { 'begin', '', 0 }
end
call('HSET', p .. 'head', 'rewriting', word .. ' ' .. text(now))
if after == '' then
  call('UNLINK', to)
end
local erased = 0
local page = call('XRANGE', from, after == '' and '-' or '(' .. after, '+', 'COUNT', most)
for _, entry in ipairs(page) do
  local id, aggregate, ordinal = entry[1], field(entry, 'a'), field(entry, 'o')
  if string.sub(aggregate, 1, #prefix) == prefix then
    erased = erased + 1
    call('XADD', to, id, 'o', ordinal, 'v', 0, 'a', '', 'e1', '')
    if call('ZSCORE', p .. 'blobs', ordinal) then
      call('SADD', p .. 'erasing', ordinal) -- who reads the old stream still needs its body
    end
  else
    call('XADD', to, id, unpack(entry[2]))
  end
  after = id
end
if #page == most then
  return { 'more', after, erased }
end

call('HDEL', p .. 'head', 'rewriting')
if after == '' then
  return { 'done', '', 0 } -- the stream is empty
end

-- The copy is complete: groups, counters and what was trimmed meanwhile, then it takes the place.
local first = call('XRANGE', from, '-', '+', 'COUNT', 1)[1]
if first then
  call('XTRIM', to, 'MINID', first[1])
else
  call('XTRIM', to, 'MAXLEN', 0)
end
local about, last_id = call('XINFO', 'STREAM', from), after
for i = 1, #about, 2 do
  if about[i] == 'last-generated-id' then
    last_id = about[i + 1]
  end
end
local ordinal = call('HGET', p .. 'head', 'ordinal')
call('XSETID', to, last_id, 'ENTRIESADDED', ordinal, 'MAXDELETEDID', '0-0')
local readers = call('HGETALL', p .. 'readers')
for i = 1, #readers, 2 do
  local its = parse_reader(readers[i + 1])
  if its.expires == 0 then
    call('XGROUP', 'CREATE', to, readers[i], its.id, 'ENTRIESREAD', its.ordinal)
  end
end
call('RENAME', to, from)
return { 'done', after, erased }
