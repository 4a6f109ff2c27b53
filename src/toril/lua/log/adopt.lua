#!lua flags=allow-oom
-- What processors did with an aggregate in the epoch before, after it was carried over.
-- keyspace: partition
-- keys: base head
-- args: aggregate, then for each processor: its name, checkpoint, state or ''
-- result: how many were further than what is here; -1 where the aggregate is not here
-- include: log/_partition

local key, adopted = KEYS[1] .. 'a:' .. ARGV[1], 0

-- How far a checkpoint is: a pending or failed one is before its version.
local function reached(checkpoint)
  local status, version = string.match(checkpoint or '', '^(%a)(%d+) ')
  return status and tonumber(version) * 2 + (status == 'p' and 1 or 0) or -1
end

if call('EXISTS', key) == 0 then
  return -1
end
for i = 2, #ARGV, 3 do
  local processor, checkpoint, state = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if reached(checkpoint) > reached(call('HGET', key, 'c:' .. processor)) then
    call('HSET', key, 'c:' .. processor, checkpoint)
    if state ~= '' then
      call('HSET', key, 's:' .. processor, state)
    end
    adopted = adopted + 1
  end
end
if adopted > 0 then
  call('HINCRBY', key, 'c', 1)
end
return adopted
