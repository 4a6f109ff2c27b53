#!lua flags=allow-oom
-- Renew the locks of jobs that are being worked on.
-- keyspace: queue
-- keys: base meta
-- args: lock ms, then id and token of each job
-- result: the places (1 for the first) of those whose lock is not this worker's any more
-- include: queue/_queue

local q, lost = KEYS[1], {}
for place = 2, #ARGV, 2 do
  local id, token = ARGV[place], ARGV[place + 1]
  local lock = q .. id .. ':lock'
  if call('GET', lock) == token then
    call('SET', lock, token, 'PX', ARGV[1])
    call('SREM', q .. 'stalled', id)
  else
    lost[#lost + 1] = place / 2
  end
end
return lost
