#!lua
-- Add jobs to a partition: all of them, or, where the backlog is full, none.
-- keyspace: stream
-- keys: base meta
-- args: how many more of the same bulk follow in other calls, their bytes; then for each job: name, data,
--       options, order key or '', tenant or '', level, delay in ms, name that is to be unique or '', ms that it
--       stays unique for
-- result: for each job its id, with '=' before it where it was added earlier under its unique name
-- include: stream/_stream

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local EACH = 9
local more, bytes, seen = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
for at = 3, #ARGV, EACH do
  local unique = ARGV[at + 7]
  if unique == '' or not (seen[unique] or call('EXISTS', p .. 'u:' .. unique) == 1) then
    more, bytes = more + 1, bytes + #ARGV[at + 1]
    seen[unique] = unique ~= ''
  end
end
local full = more > 0 and overfull(more, bytes)
if full then
  return redis.error_reply(full .. '; ' .. text(more) .. ' more were refused')
end
local function add(at, unique)
  local known = unique ~= '' and call('GET', p .. 'u:' .. unique)
  if known then
    return '=' .. known
  end
  local job = { name = ARGV[at], data = ARGV[at + 1], options = ARGV[at + 2], key = ARGV[at + 3],
    tenant = ARGV[at + 4], level = ARGV[at + 5] }
  local delay = tonumber(ARGV[at + 6])
  local id = add_job(job, delay > 0 and now + delay or 0)
  if unique ~= '' then
    call('SET', p .. 'u:' .. unique, id, 'PX', ARGV[at + 8])
  end
  return id
end

local ids, plain, plain_bytes = {}, 0, 0
for at = 3, #ARGV, EACH do
  local unique = ARGV[at + 7]
  if unique == '' and ARGV[at + 3] == '' and ARGV[at + 4] == '' and ARGV[at + 6] == '0' then
    -- Most jobs have nothing to wait for: these are counted together.
    ids[#ids + 1] = add_entry(ARGV[at + 5], ARGV[at], ARGV[at + 1], ARGV[at + 2])
    plain, plain_bytes = plain + 1, plain_bytes + #ARGV[at + 1]
  else
    ids[#ids + 1] = add(at, unique)
  end
end
tally_added(plain, plain_bytes)
-- A repeat writes too: WAIT counts what its own connection has written, and the first call may have come over
-- another one.
if not seq_used then
  call('HSET', META, 'seq', text(q.seq))
end
write_tallies()
return ids
