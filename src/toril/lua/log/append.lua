#!lua
-- Append events to aggregates of one partition: each append whole or not at all, in the order given.
-- keyspace: partition
-- keys: base head
-- args: entries kept at most (0: no limit), bytes of a body kept in the stream at most, window of
--       idempotency in ms, grain of activity in ms; then for each append: aggregate, idempotency key,
--       expected version or '', number of events n, and n bodies
-- result: for each append: 'A version n ordinal id' appended; 'R version n ordinal id' recorded earlier;
--         'C version' the version is another; 'F ms' perhaps cold, asked at that time;
--         'E' the tenant is being erased
-- include: log/_partition
-- include: log/_filter

local p = KEYS[1]
local most, inline = tonumber(ARGV[1]), tonumber(ARGV[2])
local window, grain = tonumber(ARGV[3]), tonumber(ARGV[4])
local PRUNE_FROM, PRUNE_STEP = 64, 4 -- records an aggregate may have before old ones are looked at

local head = call('HMGET', p .. 'head', 'ordinal', 'sealed', 'carry', 'levels', 'trimmed')
if head[2] then
  return redis.error_reply('SEALED this partition goes on in epoch ' .. head[2])
end
local stream = p .. 'entries'
if most > 0 and call('XLEN', stream) >= most then
  return redis.error_reply('FULL this partition keeps ' .. most .. ' entries, and its readers are behind')
end
local ordinal, carry, levels = tonumber(head[1] or '0'), head[3], tonumber(head[4] or '0')
local trimmed = tonumber(head[5] or '0')
local started_at = ordinal
local now = now_ms()
local walls = call('EXISTS', p .. 'walls') == 1

-- The first entry of a call takes the server's time, the others the same millisecond: the ids of one
-- append follow each other, on servers whose clock goes on during a script too.
local next_id = '*'

local function write(aggregate, version, body)
  ordinal = ordinal + 1
  local id
  if #body <= inline then
    id = call('XADD', stream, next_id, 'o', ordinal, 'v', version, 'a', aggregate, 'e1', body)
  else
    call('SET', p .. 'b:' .. ordinal, body)
    call('ZADD', p .. 'blobs', ordinal, ordinal)
    id = call('XADD', stream, next_id, 'o', ordinal, 'v', version, 'a', aggregate, 'r1', #body)
  end
  if next_id == '*' then
    next_id = string.match(id, '^%d+') .. '-*'
  end
  return id
end

local results, repeated, active = {}, false, {} -- `active` is what one ZADD takes
local at = 5
while at <= #ARGV do
  local aggregate, idempotency, expected, n = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local bodies = at + 4
  at = bodies + n
  local key, seen = p .. 'a:' .. aggregate, 'k:' .. idempotency
  local its = call('HMGET', key, 'v', seen, 't', 'c', 'x')
  local result
  if walls and call('SISMEMBER', p .. 'walls', tenant_of(aggregate)) == 1 then
    result = 'E'
  elseif its[2] then
    repeated = true
    local count, first_ordinal, id = parse_record(call('HGET', key, its[2]))
    result = 'R ' .. its[2] .. ' ' .. count .. ' ' .. first_ordinal .. ' ' .. id
  elseif not its[1] and (carry or perhaps_cold(p, aggregate, levels)) then
    result = 'F ' .. now
  elseif expected ~= '' and expected ~= (its[1] or '0') then
    result = 'C ' .. (its[1] or '0')
  else
    -- Numbers are cheap as arguments of a call and dear in a text: where an append is, is put together once.
    local version = tonumber(its[1] or '0')
    local first, place = version + 1, ARGV[bodies - 1] .. ' ' .. ordinal + 1 .. ' '
    place = place .. write(aggregate, first, ARGV[bodies])
    for i = 2, n do
      write(aggregate, version + i, ARGV[bodies + i - 1])
    end
    local record, changes = place .. ' ' .. idempotency, tonumber(its[4] or '0') + 1
    if its[3] and now - its[3] < grain then
      call('HSET', key, 'v', version + n, 'c', changes, first, record, seen, first)
    else
      call('HSET', key, 'v', version + n, 'c', changes, first, record, seen, first, 't', now)
      active[#active + 1] = now
      active[#active + 1] = aggregate
    end
    local oldest = tonumber(its[5] or '1')
    if version - oldest >= PRUNE_FROM then
      prune(key, oldest, version, trimmed, now - window, PRUNE_STEP)
    end
    result = 'A ' .. first .. ' ' .. place
  end
  results[#results + 1] = result
end
-- A repeat writes too: WAIT counts what its own connection has written, and the first call may have come
-- over another one.
if ordinal > started_at or repeated then
  call('HSET', p .. 'head', 'ordinal', ordinal)
end
if ordinal > started_at then
  if #active > 0 then
    call('ZADD', p .. 'activity', unpack(active))
  end
  call('SPUBLISH', p .. 'bell', ordinal)
end
return results
