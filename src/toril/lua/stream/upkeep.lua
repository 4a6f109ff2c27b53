#!lua flags=allow-oom
-- Look after a partition: trim what is acknowledged and was not deleted, go on dropping what follows a dead
-- head, and find out whether entries have vanished that nobody was given.
-- keyspace: stream
-- keys: base meta
-- args: entries trimmed at most, jobs dropped at most
-- result: {entries trimmed, jobs lost}
-- include: stream/_stream
-- include: stream/_end

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end

-- The first entry that may not go: the oldest that is pending, or the first that nobody was given.
local function floor_of(stream)
  local pending = with_group(stream, 'XPENDING', stream, q.group)
  if pending[1] > 0 then
    return pending[2]
  end
  for _, row in ipairs(call('XINFO', 'GROUPS', stream)) do
    local its = as_table(row)
    if its.name == q.group then
      local ms, seq = string.match(its['last-delivered-id'], '^(%d+)%-(%d+)$')
      return ms .. '-' .. text(seq + 1)
    end
  end
end

local trimmed, entries = 0, 0
for number = 0, q.levels - 1 do
  local stream = stream_of(text(number))
  local floor = floor_of(stream)
  local groups = call('XINFO', 'GROUPS', stream)
  if #groups == 1 then -- another group may still want to read them
    trimmed = trimmed + call('XTRIM', stream, 'MINID', '~', floor, 'LIMIT', ARGV[1])
  end
  entries = entries + call('XLEN', stream)
end

local dropping = call('HGETALL', p .. 'dropping')
local left = tonumber(ARGV[2])
for at = 1, #dropping, 2 do
  local key, still = dropping[at], tonumber(dropping[at + 1])
  if left > 0 then
    local wanted = math.min(still, left)
    local dropped = drop_followers(key, wanted)
    left = left - dropped
    if dropped < wanted or dropped == still then
      call('HDEL', p .. 'dropping', key)
      pass_on(key)
    else
      call('HSET', p .. 'dropping', key, still - dropped)
    end
  end
end

-- Jobs that are neither in a stream nor in a hash have been deleted by somebody. A token that was deleted is
-- put back: one too many does no harm.
local counts = call('HMGET', META, 'jobs', 'held', 'tokens')
local function count(place, name)
  return tonumber(counts[place] or '0') + (tallies[name] or 0)
end
local lost = 0
local tokens = count(3, 'tokens')
local vanished = count(1, 'jobs') - count(2, 'held') + tokens - (entries + (tallies.tokens or 0))
if vanished ~= 0 then
  local real = 0
  for number = 0, q.levels - 1 do
    local level = text(number)
    local ready = 0
    for _, tenant in ipairs(call('LRANGE', p .. 'ring:' .. level, 0, -1)) do
      ready = ready + call('LLEN', p .. 'r:' .. level .. ':' .. tenant)
    end
    local waiting, at = 0, '-'
    for _, row in ipairs(call('XINFO', 'GROUPS', stream_of(level))) do
      local its = as_table(row)
      if its.name == q.group then
        at = '(' .. its['last-delivered-id']
      end
    end
    for _, entry in ipairs(call('XRANGE', stream_of(level), at, '+')) do
      waiting = waiting + (entry[2][1] == 'h' and 1 or 0)
    end
    for _ = waiting + 1, ready do
      call('XADD', stream_of(level), next_id(), 'h', '')
      rung = true
    end
    real = real + math.max(waiting, ready)
  end
  -- Tokens that are running are bound; the others were just counted.
  tokens = real + call('HLEN', p .. 'bound')
  call('HSET', META, 'tokens', tokens)
  tallies.tokens = nil
  entries = 0
  for number = 0, q.levels - 1 do
    entries = entries + call('XLEN', stream_of(text(number)))
  end
  lost = count(1, 'jobs') - count(2, 'held') - (entries - tokens)
  if lost > 0 then
    tally('lost', lost)
  end
  tally('jobs', -lost)
end
if count(1, 'jobs') == 0 then
  tallies.bytes = nil
  call('HSET', META, 'bytes', '0')
end
write_tallies()
return { trimmed, math.max(lost, 0) }
