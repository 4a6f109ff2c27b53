#!lua
-- States that were made elsewhere come to a processor that has not begun, for aggregates that are here. What
-- it has already stays.
-- keyspace: partition
-- keys: base head
-- args: processor, the reader that keeps its place, then for each: aggregate, the version it is made up to,
--       status and version of its checkpoint ('p5'), the checkpoint's event, state or ''
-- result: '1' where the log goes on in a later epoch, else '0'; then for each: 'A' placed, 'S' is there
--         already, 'E' its tenant was erased since, or is being erased, 'F ms' not here at that time,
--         'V version' the aggregate has only so many events
-- include: log/_partition
-- include: log/_readers

local p, processor, floor, now = KEYS[1], ARGV[1], ARGV[2], now_ms()
if not reader_of(p, floor) then
  return redis.error_reply('GONE this generation is not being loaded')
end
local checkpoint_field, state_field = 'c:' .. processor, 's:' .. processor
local results = { tostring(call('HEXISTS', p .. 'head', 'sealed')) }
for i = 3, #ARGV, 5 do
  local aggregate, version, result = ARGV[i], tonumber(ARGV[i + 1]), 'A'
  local key, tenant = p .. 'a:' .. aggregate, tenant_of(aggregate)
  local its = call('HMGET', key, 'v', checkpoint_field)
  if call('SISMEMBER', p .. 'walls', tenant) == 1 or call('SISMEMBER', p .. 'e:' .. floor, tenant) == 1 then
    result = 'E'
  elseif not its[1] then
    result = 'F ' .. text(now)
  elseif its[2] then
    result = 'S'
    -- A write, so that who waits for replicas waits for this too: a call before may not have.
    call('HSET', key, checkpoint_field, its[2])
  elseif tonumber(its[1]) < version then
    result = 'V ' .. its[1]
  else
    local checkpoint = ARGV[i + 2] .. ' ' .. ARGV[i + 3] .. ' ' .. text(now)
    call('HSET', key, checkpoint_field, checkpoint)
    if ARGV[i + 4] ~= '' then
      call('HSET', key, state_field, ARGV[i + 4])
    end
    call('HINCRBY', key, 'c', 1)
  end
  results[#results + 1] = result
end
return results
