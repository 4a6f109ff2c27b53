#!lua flags=no-writes
-- All that Redis has of an aggregate, where the log is in this epoch.
-- keyspace: partition
-- keys: base head
-- args: aggregate [field …]
-- result: its fields and values; of those asked for, where any are, with its version (0: there is no such
--   aggregate, here or elsewhere), and with the record that an idempotency key (k:…) leads to; nothing where it
--   is perhaps cold
-- include: log/_partition
-- include: log/_filter

local head = call('HMGET', KEYS[1] .. 'head', 'sealed', 'carry', 'levels')
if head[1] then
  return redis.error_reply('SEALED the log goes on in epoch ' .. head[1])
end
local aggregate = KEYS[1] .. 'a:' .. ARGV[1]
if not ARGV[2] then
  return call('HGETALL', aggregate)
end
local found = {}
local function add(field)
  local value = call('HGET', aggregate, field)
  if value then
    found[#found + 1] = field
    found[#found + 1] = value
  end
  return value
end
if not add('v') then
  if not head[2] and not perhaps_cold(KEYS[1], ARGV[1], tonumber(head[3] or '0')) then
    return { 'v', '0' }
  end
else
  for at = 2, #ARGV do
    local value = add(ARGV[at])
    if value and string.sub(ARGV[at], 1, 2) == 'k:' then
      add(value)
    end
  end
end
return found
