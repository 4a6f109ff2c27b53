-- Readers: `readers` holds 'ordinal id fence expires' for each.

local function text(number)
  return string.format('%.0f', number)
end

local function parse_reader(line)
  local ordinal, id, fence, expires = string.match(line, '^(%d+) (%d+%-%d+) (%d+) (%d+)$')
  return { ordinal = tonumber(ordinal), id = id, fence = tonumber(fence), expires = tonumber(expires) }
end

local function reader_of(p, name)
  local line = call('HGET', p .. 'readers', name)
  return line and parse_reader(line)
end

local function save_reader(p, name, its)
  local line = text(its.ordinal) .. ' ' .. its.id .. ' ' .. text(its.fence) .. ' ' .. text(its.expires)
  call('HSET', p .. 'readers', name, line)
end

-- What is wrong with a position: there must be an entry with this id and this ordinal.
local function wrong_place(p, ordinal, id)
  local last = tonumber(call('HGET', p .. 'head', 'ordinal') or '0')
  if ordinal > last then
    return 'PAST ordinal ' .. text(ordinal) .. ' is past the last one, ' .. text(last)
  end
  local entry = call('XRANGE', p .. 'entries', id, id)[1]
  if not entry or ordinal_of(entry) ~= ordinal then
    return 'NOPLACE no entry ' .. id .. ' with ordinal ' .. text(ordinal) .. ' is in this partition'
  end
end
