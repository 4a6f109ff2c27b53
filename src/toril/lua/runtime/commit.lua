#!lua flags=allow-oom
-- What a processor has done since its last commit: checkpoints and states of aggregates, events that are
-- parked, and how far it is. All of it, or nothing where another worker has the partition now.
-- keyspace: partition
-- keys: base head
-- args: processor, fence, ordinal and id it is done up to, grain of activity in ms, '1' where others wait
--       for it, then for each change:
--       'D' aggregate first last event '1' state   events first to last are processed ('0' '': no state)
--       'P' aggregate version event status due record n entries   this event and those after it are parked
--       'M' aggregate n entries                     more events of an aggregate that has parked ones
--       'U' aggregate last event popped '1' state   the first `popped` parked events are processed
--       'B' aggregate version event                 this event is begun, where a worker may die of it
--       'L' aggregate version event status due record   the first parked event is tried later, or failed
-- result: for each change: 'A' done, 'S' was done before, 'O' out of order, 'F ms' perhaps cold
-- include: log/_partition
-- include: log/_readers

local p, processor, fence, ordinal, id = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local grain, awaited, now = tonumber(ARGV[5]), ARGV[6] == '1', now_ms()
local reader = reader_of(p, processor)
if not reader then
  return redis.error_reply('GONE this processor is not registered: it was retired')
end
if reader.fence ~= fence then
  return redis.error_reply('FENCED another worker runs this processor here now')
end
local moves = ordinal > reader.ordinal
local wrong = moves and wrong_place(p, ordinal, id)
if wrong then
  return redis.error_reply(wrong)
end
local waiting, trouble = p .. 'w:' .. processor, p .. 'x:' .. processor
local checkpoint_field, state_field = 'c:' .. processor, 's:' .. processor

-- A checkpoint is 'p5 event ms': p processed, n pending (tried again), f failed.
local function processed(checkpoint)
  local status, version = string.match(checkpoint, '^(%a)(%d+) ')
  return status == 'p' and tonumber(version) or tonumber(version) - 1, status
end

local function note(key, aggregate, its, checkpoint, has_state, state)
  local changes = tonumber(its[3] or '0') + 1
  if has_state == '1' then
    call('HSET', key, checkpoint_field, checkpoint, 'c', changes, state_field, state)
  else
    call('HSET', key, checkpoint_field, checkpoint, 'c', changes)
  end
  if not its[4] or now - its[4] >= grain then
    call('HSET', key, 't', now)
    call('ZADD', p .. 'activity', now, aggregate)
  end
end

local function is_parked(aggregate)
  return call('ZSCORE', waiting, aggregate)
end

local function park(aggregate, first, count)
  local list = p .. 'q:' .. processor .. ' ' .. aggregate
  for i = first, first + count - 1 do
    call('RPUSH', list, ARGV[i])
  end
end

local results, at = {}, 7
while at <= #ARGV do
  local kind, aggregate, result = ARGV[at], ARGV[at + 1], 'A'
  local key = p .. 'a:' .. aggregate
  local its = call('HMGET', key, checkpoint_field, 'v', 'c', 't')
  local done, status = 0, 'p'
  if its[1] then
    done, status = processed(its[1])
  end
  local cold = not its[2] and kind ~= 'M'
  if kind == 'D' then
    local first, last = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    if cold then
      result = 'F ' .. now
    elseif done >= last then
      result = 'S'
    elseif status == 'f' or (its[1] and first ~= done + 1) or (status == 'n' and is_parked(aggregate)) then
      result = 'O'
    else
      local checkpoint = 'p' .. last .. ' ' .. ARGV[at + 4] .. ' ' .. now
      note(key, aggregate, its, checkpoint, ARGV[at + 5], ARGV[at + 6])
    end
    at = at + 7
  elseif kind == 'P' then
    local count = tonumber(ARGV[at + 7])
    if cold then
      result = 'F ' .. now
    elseif status ~= 'p' and is_parked(aggregate) then
      result = 'O'
    else
      note(key, aggregate, its, ARGV[at + 4] .. ARGV[at + 2] .. ' ' .. ARGV[at + 3] .. ' ' .. now, '0')
      call('ZADD', waiting, ARGV[at + 5], aggregate)
      call('HSET', trouble, aggregate, ARGV[at + 6])
      park(aggregate, at + 8, count)
    end
    at = at + 8 + count
  elseif kind == 'M' then
    local count = tonumber(ARGV[at + 2])
    park(aggregate, at + 3, count)
    at = at + 3 + count
  elseif kind == 'U' then
    local list = p .. 'q:' .. processor .. ' ' .. aggregate
    if cold then
      result = 'F ' .. now
    elseif done >= tonumber(ARGV[at + 2]) then
      result = 'S'
    else
      call('LTRIM', list, ARGV[at + 4], -1)
      local checkpoint = 'p' .. ARGV[at + 2] .. ' ' .. ARGV[at + 3] .. ' ' .. now
      note(key, aggregate, its, checkpoint, ARGV[at + 5], ARGV[at + 6])
      call('HDEL', trouble, aggregate)
      if call('EXISTS', list) == 1 then
        call('ZADD', waiting, now, aggregate)
      else
        call('ZREM', waiting, aggregate)
      end
    end
    at = at + 7
  elseif kind == 'B' then
    if cold then
      result = 'F ' .. now
    else
      note(key, aggregate, its, 'n' .. ARGV[at + 2] .. ' ' .. ARGV[at + 3] .. ' ' .. now, '0')
    end
    at = at + 4
  else -- 'L'
    if cold then
      result = 'F ' .. now
    else
      note(key, aggregate, its, ARGV[at + 4] .. ARGV[at + 2] .. ' ' .. ARGV[at + 3] .. ' ' .. now, '0')
      call('ZADD', waiting, ARGV[at + 5], aggregate)
      call('HSET', trouble, aggregate, ARGV[at + 6])
    end
    at = at + 7
  end
  results[#results + 1] = result
end

if moves then
  reader.ordinal, reader.id = ordinal, id
  save_reader(p, processor, reader)
  call('XGROUP', 'SETID', p .. 'entries', processor, id, 'ENTRIESREAD', ordinal)
  call('HDEL', p .. 'leases', 'deaths ' .. processor)
  if awaited then
    call('SPUBLISH', p .. 'bell', ordinal)
  end
end
return results
