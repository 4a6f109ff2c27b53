#!lua flags=allow-oom
-- Let go of jobs that the old queue has again, or has no more.
-- keyspace: queue
-- keys: base meta
-- args: runner, then for each job: its id in the old queue, and back (it is there again: remove it here) or
--       done (it is gone there: it stays here)
-- result: 0
-- include: queue/_queue
-- include: queue/_remove
-- include: migrate/_tracker

local q, tracker = KEYS[1], KEYS[1] .. 'toril:migrated'
local refused = superseded(q, ARGV[1])
if refused then
  return refused
end
for place = 2, #ARGV, 2 do
  local theirs = ARGV[place]
  local value = call('HGET', tracker, theirs)
  local entry = value and read_entry(value)
  if entry and ARGV[place + 1] == 'done' then
    write_entry(q, theirs, 'z', entry.timestamp, entry.digest, entry.other)
  elseif entry and entry.letter == 'r' then
    local id = entry.other ~= '' and entry.other or theirs
    free_dedup_id(q, id)
    delete_job(q .. id)
    call('HDEL', tracker, theirs)
    call('HDEL', q .. 'toril:migration', 'r:' .. id)
  end
end
return 0
