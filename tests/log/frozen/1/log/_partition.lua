-- What every script of this room knows about a partition. `p` is its key prefix, `toril:{log:07}:`.
--
-- An aggregate's hash (`a:<tenant:type:id>`) has these fields:
--   v            its version: how many events it has
--   c            how often the hash was changed, ever: tells two snapshots of it apart
--   t            when it was last active (ms), written when that is older than the grain
--   x            the oldest version that still has a record, where older ones were pruned
--   <version>    a record of one append, under its first version: 'n ordinal id key'
--   k:<key>      the version that an idempotency key was recorded under
--   c:<processor>, s:<processor>   the checkpoint and the state of a processor (the runtime's)
--
-- Every script names two keys: `base`, which never exists, and `head`. While a cluster moves their slot to
-- another server key by key, a call with several keys of which some are missing is refused (TRYAGAIN) by both
-- servers, so no script meets half of a partition: it stands still until the move is over.

local call = redis.call

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- n, ordinal, id of the first entry, idempotency key
local function parse_record(text)
  local n, ordinal, id, key = string.match(text, '^(%d+) (%d+) (%d+%-%d+) (.*)$')
  return tonumber(n), tonumber(ordinal), id, key
end

local function ms_of(id)
  return tonumber(string.match(id, '^%d+'))
end

-- The value of one field of a stream entry.
local function field(entry, name)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == name then
      return fields[i + 1]
    end
  end
end

local function ordinal_of(entry)
  return tonumber(field(entry, 'o'))
end

local function tenant_of(aggregate)
  return string.match(aggregate, '^[^:]*')
end

-- The last ordinal that was trimmed.
local function trimmed_of(p)
  return tonumber(call('HGET', p .. 'head', 'trimmed') or '0')
end

-- Drop the oldest records of an aggregate: those whose entries are trimmed and whose key is older than the
-- window. At most `most`; returns the number dropped and the oldest version that has a record now.
local function prune(key, oldest, version, trimmed, before, most)
  local dropped = 0
  while dropped < most and oldest <= version do
    local text = call('HGET', key, oldest)
    if not text then
      break
    end
    local n, ordinal, id, idempotency = parse_record(text)
    if ordinal + n - 1 > trimmed or ms_of(id) > before then
      break
    end
    call('HDEL', key, oldest, 'k:' .. idempotency)
    oldest = oldest + n
    dropped = dropped + 1
  end
  if dropped > 0 then
    call('HSET', key, 'x', oldest)
  end
  return dropped, oldest
end
