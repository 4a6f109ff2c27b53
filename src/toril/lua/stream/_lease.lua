-- Whose an entry is: the consumer that it was delivered to last, with the number of that delivery.

-- Of these entries of a level, those that the consumer has: entry -> delivery. `most`: how many it may have.
local function held_by(level, consumer, entries, most)
  local stream, found = stream_of(level), {}
  if #entries * 4 >= most then
    local rows = with_group(stream, 'XPENDING', stream, q.group, '-', '+', math.max(most, #entries), consumer)
    for _, row in ipairs(rows) do
      found[row[1]] = row[4]
    end
    return found
  end
  for _, entry in ipairs(entries) do
    local row = with_group(stream, 'XPENDING', stream, q.group, entry, entry, 1, consumer)[1]
    if row then
      found[entry] = row[4]
    end
  end
  return found
end

-- Sort what a worker names (each with level and entry) into levels.
local function by_level(named)
  local levels = {}
  for _, each in ipairs(named) do
    local its = levels[each.level]
    if not its then
      its = {}
      levels[each.level] = its
    end
    its[#its + 1] = each.entry
  end
  return levels
end
