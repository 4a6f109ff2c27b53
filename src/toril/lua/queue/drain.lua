#!lua flags=allow-oom
-- Remove what waits, and what is delayed if so asked; the next runs of schedulers stay.
-- keyspace: queue
-- keys: base meta
-- args: 1 for delayed jobs too
-- result: 0
-- include: queue/_queue
-- include: queue/_remove

local q = KEYS[1]
local kept = {}
local schedulers = call('ZRANGE', q .. 'repeat', 0, -1, 'WITHSCORES')
for place = 1, #schedulers, 2 do
  kept['repeat:' .. schedulers[place] .. ':' .. schedulers[place + 1]] = true
end

local function remove_of(ids)
  local gone = {}
  for _, id in ipairs(ids) do
    if not kept[id] then
      remove_job(q, id, true, true)
      gone[#gone + 1] = id
    end
  end
  return gone
end

-- BullMQ cuts as many ids from the head as it removed jobs, which loses a scheduler's job that stands there.
local function drain_list(key)
  local ids = call('LRANGE', key, 0, -1)
  if #remove_of(ids) == 0 then
    return
  end
  local stay = {}
  for _, id in ipairs(ids) do
    if kept[id] then
      stay[#stay + 1] = id
    end
  end
  call('DEL', key)
  in_steps(stay, function(...)
    call('RPUSH', key, ...)
  end)
end

local function drain_set(key)
  in_steps(remove_of(call('ZRANGE', key, 0, -1)), function(...)
    call('ZREM', key, ...)
  end)
end

drain_list(q .. 'wait')
drain_list(q .. 'paused')
if ARGV[1] == '1' then
  drain_set(q .. 'delayed')
end
drain_set(q .. 'prioritized')
return 0
