#!lua flags=no-writes
-- The entries of one aggregate that are in the stream, from a version on.
-- keyspace: partition
-- keys: base head
-- args: aggregate, first version wanted, versions at most, events one append may have at most, entries
--       that are worth being sent through a script at most
-- result: 'F' perhaps cold; or its version (0: there is none), the version to go on from, and the entries,
--         or where they are: for each stretch of them 'id of the first, how many are to be left out, how
--         many then to be taken, ordinal of the last'; versions whose entries are no longer in the stream
--         are left out
-- include: log/_partition
-- include: log/_filter

local p, key = KEYS[1], KEYS[1] .. 'a:' .. ARGV[1]
local wanted, most, widest = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local direct = tonumber(ARGV[5])
local head = call('HMGET', p .. 'head', 'sealed', 'carry', 'levels')
if head[1] then
  return redis.error_reply('SEALED the log goes on in epoch ' .. head[1])
end
local its = call('HMGET', key, 'v', 'x')
if not its[1] then
  if head[2] or perhaps_cold(p, ARGV[1], tonumber(head[3] or '0')) then
    return 'F'
  end
  return { '0', '1', {}, {} }
end
local version, trimmed, found = tonumber(its[1]), trimmed_of(p), {}
local oldest = tonumber(its[2] or '1')
local first = math.max(wanted, oldest)
-- The record that holds the first wanted version is under the first version of its append.
for _ = 1, widest do
  if first <= oldest or call('HEXISTS', key, first) == 1 then
    break
  end
  first = first - 1
end

-- Entries that follow each other in the stream are one stretch, also those of several appends.
local stretches, planned = {}, 0
local function plan(ordinal, id, skip, count)
  local last = stretches[#stretches]
  if last and ordinal == last.ends + 1 then
    last.count = last.count + count
  else
    last = { id = id, skip = skip, count = count }
    stretches[#stretches + 1] = last
  end
  last.ends = ordinal + skip + count - 1
  planned = planned + count
end

-- How many events follow each other from an append of n on. Ordinals grow with the versions: where both have
-- grown by as much, nothing of others is between. Only the farthest append that may be wanted is looked at.
local function follow(version_there, n, ordinal)
  local last = math.min(version, version_there + most - planned - 1)
  local far = version_there + (math.floor((last - version_there + 1) / n) - 1) * n
  local record = far > version_there and call('HGET', key, far)
  if record then
    local far_n, far_ordinal = parse_record(record)
    if far_n == n and far_ordinal - ordinal == far - version_there then
      return far - version_there + n
    end
  end
  return n
end

-- Records are asked for some at a time, as if all appends were as long as the one before.
local RECORDS, AHEAD = 1000, 100
local records, guesses, at, width, followed = {}, {}, 1, 1, false
for _ = 1, RECORDS do
  if first > version or planned >= most then
    break
  end
  if guesses[at] ~= first then
    local missed, before = guesses[at], #guesses
    local asked = missed and 1 or math.max(1, math.min(2 * before, AHEAD, math.ceil((most - planned) / width)))
    guesses, at = {}, 1
    for i = 1, asked do
      guesses[i] = first + (i - 1) * width
    end
    records = call('HMGET', key, unpack(guesses))
  end
  if not records[at] then
    break
  end
  local n, ordinal, id = parse_record(records[at])
  at, width = at + 1, n
  if first >= wanted and ordinal > trimmed and n <= most - planned then
    if not followed then
      followed, n = true, follow(first, n, ordinal)
    end
    plan(ordinal, id, 0, n)
  else
    -- Of its n entries, those before `from` are not wanted, and those before `there` are trimmed.
    local from, there = math.max(wanted - first, 0), math.max(trimmed - ordinal + 1, 0)
    local start = math.max(from, there)
    if start < n then
      local to = math.min(n, start + most - planned)
      plan(ordinal + there, id, start - there, to - start)
      if to < n then
        first = first + to
        break
      end
    end
  end
  first = first + n
end

-- An entry that goes through a script costs the server some 4 microseconds, one that does not costs 1. So
-- the client asks for long stretches itself. Few entries come with this answer; and so do short stretches,
-- for looking up the place is what they cost, either way.
local SHORT = 4
local by_client = planned > direct and planned > SHORT * #stretches
local places = {}
for i, its in ipairs(stretches) do
  if by_client then
    places[i] = its.id .. ' ' .. its.skip .. ' ' .. its.count .. ' ' .. its.ends
  else
    local page = call('XRANGE', p .. 'entries', its.id, '+', 'COUNT', its.skip + its.count)
    local last = page[its.skip + its.count]
    if not last or ordinal_of(last) ~= its.ends then
      return redis.error_reply('GAP of the entries up to ordinal ' .. its.ends .. ' one is missing')
    end
    for j = its.skip + 1, #page do
      found[#found + 1] = page[j]
    end
  end
end
return { its[1], tostring(first), found, places }
