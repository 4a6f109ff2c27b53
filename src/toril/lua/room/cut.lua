#!lua flags=allow-oom
-- Write down the cuts of a shuffled order, all of a lane at once; where somebody else has done so, nothing.
-- keyspace: room
-- keys: base meta
-- args: lane, cuts
-- result: how many cuts there are
-- include: room/_room

local p, lane = KEYS[1], ARGV[1]
local cuts = p .. lane .. ':cuts'
if call('HGET', p .. 'meta', 'phase') == 'shuffling' and call('LLEN', cuts) == 0 then
  for i = 2, #ARGV do
    call('RPUSH', cuts, ARGV[i])
  end
end
return call('LLEN', cuts)
