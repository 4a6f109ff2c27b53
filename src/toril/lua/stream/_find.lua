-- Where a job is.

-- The level and the entry that a job outside a stream runs under; nil where it does not run.
local function bound_to(id)
  local bound = call('HGETALL', p .. 'bound')
  for at = 1, #bound, 2 do
    if bound[at + 1] == id then
      return string.match(bound[at], '^(%d+):(.*)$')
    end
  end
end

-- The level whose stream has an entry, the entry, and whether somebody has it; nil where there is none.
local function find_entry(id)
  if not string.match(id, '^%d+%-%d+$') then
    return nil
  end
  for number = 0, q.levels - 1 do
    local level = text(number)
    local stream = stream_of(level)
    local entry = call('XRANGE', stream, id, id)[1]
    if entry and entry[2][1] ~= 'h' then
      local pending = redis.pcall('XPENDING', stream, q.group, id, id, 1)
      return level, entry, not pending.err and pending[1] or nil
    end
  end
end
