-- Where a job is.

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
