#!lua flags=no-writes
-- The entries of one aggregate that are in the stream, from a version on.
-- keyspace: partition
-- keys: base head
-- args: aggregate, first version wanted, versions at most, events one append may have at most
-- result: 'F' perhaps cold; or its version (0: there is none), the version to go on from, and the entries;
--         versions whose entries are no longer in the stream are left out
-- include: log/_partition
-- include: log/_filter

local p, key = KEYS[1], KEYS[1] .. 'a:' .. ARGV[1]
local wanted, most, widest = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local head = call('HMGET', p .. 'head', 'sealed', 'carry', 'levels')
if head[1] then
  return redis.error_reply('SEALED the log goes on in epoch ' .. head[1])
end
local its = call('HMGET', key, 'v', 'x')
if not its[1] then
  if head[2] or perhaps_cold(p, ARGV[1], tonumber(head[3] or '0')) then
    return 'F'
  end
  return { '0', '1', {} }
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
local RECORDS = 1000
for _ = 1, RECORDS do
  local record = first <= version and #found < most and call('HGET', key, first)
  if not record then
    break
  end
  local n, ordinal, id = parse_record(record)
  -- Of its n entries, those before `from` are not wanted, and those before `there` are trimmed.
  local from, there = math.max(wanted - first, 0), math.max(trimmed - ordinal + 1, 0)
  local to = math.min(n, math.max(from, there) + most - #found)
  if there < n and from < n then
    local page = call('XRANGE', p .. 'entries', id, '+', 'COUNT', to - there)
    for i = math.max(from, there) + 1, to do
      local entry = page[i - there]
      if not entry or ordinal_of(entry) ~= ordinal + i - 1 then
        return redis.error_reply('GAP the entry of ordinal ' .. ordinal + i - 1 .. ' is missing')
      end
      found[#found + 1] = entry
    end
    if to < n then
      return { its[1], tostring(first + to), found }
    end
  end
  first = first + n
end
return { its[1], tostring(first), found }
