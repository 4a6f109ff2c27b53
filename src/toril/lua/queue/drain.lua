#!lua flags=allow-oom
-- Remove what waits, and what is delayed if so asked, a bounded number of jobs at a time; the next runs of
-- schedulers stay.
-- keyspace: queue
-- keys: base meta
-- args: 1 for delayed jobs too, how many
-- result: 1 when there may be more, 0 when all is gone
-- include: queue/_queue
-- include: queue/_remove

local q, left = KEYS[1], tonumber(ARGV[2])
local kept = {}
local schedulers = call('ZRANGE', q .. 'repeat', 0, -1, 'WITHSCORES')
for place = 1, #schedulers, 2 do
  kept['repeat:' .. schedulers[place] .. ':' .. schedulers[place + 1]] = true
end

-- BullMQ cuts as many ids from the head as it removed jobs, which loses a scheduler's job that stands there.
local function drain(suffix, read, forget)
  if left == 0 then
    return
  end
  local key = q .. suffix
  -- However many of the first ones stay: as many others as may go are among these.
  for _, id in ipairs(call(read, key, 0, left + #schedulers / 2 - 1)) do
    if left > 0 and not kept[id] then
      remove_job(q, id, true, true)
      forget(key, id)
      left = left - 1
    end
  end
end

local function forget_in_list(key, id)
  call('LREM', key, 1, id)
end

local function forget_in_set(key, id)
  call('ZREM', key, id)
end

drain('wait', 'LRANGE', forget_in_list)
drain('paused', 'LRANGE', forget_in_list)
if ARGV[1] == '1' then
  drain('delayed', 'ZRANGE', forget_in_set)
end
drain('prioritized', 'ZRANGE', forget_in_set)
return left == 0 and 1 or 0
