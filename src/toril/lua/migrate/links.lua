#!lua flags=no-writes
-- Which queues jobs are linked to by flows.
-- keyspace: queue
-- keys: base meta
-- args: ids
-- result: the queues of their parents (`prefix:name`), and the keys of a child of each queue
-- include: queue/_queue

local q, parents, children, seen = KEYS[1], {}, {}, {}
local prefix = string.match(q, '^(.*:)[^:]*:$')

local function note(list, key, name)
  if not seen[name] then
    seen[name] = true
    list[#list + 1] = key
  end
end

local function note_children(keys)
  for _, key in ipairs(keys) do
    -- A name holds no ':', so that of a queue with our prefix ends at the next one.
    local other = string.sub(key, 1, #prefix) == prefix and string.match(key, '^[^:]*', #prefix + 1)
    note(children, key, other or key)
  end
end

for _, id in ipairs(ARGV) do
  local key = q .. id
  local parent = redis.pcall('HGET', key, 'parent')
  local queue = type(parent) == 'string' and string.match(parent, '"queueKey":"(.-)"')
  if queue then
    note(parents, queue, 'parent ' .. queue)
  end
  if call('EXISTS', key .. ':dependencies', key .. ':processed', key .. ':failed', key .. ':unsuccessful') > 0 then
    note_children(call('SMEMBERS', key .. ':dependencies'))
    note_children(call('HKEYS', key .. ':processed'))
    note_children(call('HKEYS', key .. ':failed'))
    note_children(call('ZRANGE', key .. ':unsuccessful', 0, -1))
  end
end
return { parents, children }
