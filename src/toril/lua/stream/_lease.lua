-- Whose an entry is: the consumer that it was delivered to last, with the number of that delivery.

-- Of these entries of a level, those that the consumer has: entry -> delivery. `most`: how many it may have.
local function held_by(level, consumer, entries, most)
  local stream, found, count = stream_of(level), {}, 0
  local function look(first, last)
    for _, row in ipairs(with_group(stream, 'XPENDING', stream, q.group, first, last, most, consumer)) do
      found[row[1]] = row[4]
    end
  end
  -- Jobs end about in the order they were taken in: mostly the others are between the first and the last.
  look(entries[1], entries[#entries])
  for _, entry in ipairs(entries) do
    count = count + (found[entry] and 1 or 0)
  end
  if count < #entries and #entries > 1 then
    look('-', '+')
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
