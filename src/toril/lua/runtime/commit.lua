#!lua flags=allow-oom
-- What a processor has done since its last commit: checkpoints and states of aggregates, events that are
-- parked, and how far it is. All of it; nothing where another worker has the partition now, where an
-- aggregate is not here, or where the commit before was lost in a failover.
-- keyspace: partition
-- keys: base head
-- args: processor, worker, fence, number of the commit, ordinal and id it is done up to, grain of activity in
--       ms, '1' where others wait for it, then for each change:
--       'D' aggregate first last event '1' state   events first to last are processed ('0' '': no state)
--       'P' aggregate version event status due record n entries   this event and those after it are parked
--       'M' aggregate n entries                     more events of an aggregate that has parked ones
--       'U' aggregate last event '1' state          the first parked event is processed
--       'L' aggregate version event status due record   the first parked event is tried later, or failed
--       'H' aggregate                               the parked events are in the next epoch now
--       'B' aggregate version                       this event is begun, where a worker may die of it
-- result: nothing, where this very commit was done before; else for each change: 'A' done, 'S' was done
--         before, 'O' out of order. Or, and then nothing was done: 'F ms' not here at that time, 'E ms' the
--         same, and its tenant is being erased or was; 'A' for the others
-- include: log/_partition
-- include: log/_arrive
-- include: log/_readers

local p, processor, worker, fence, number = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local ordinal, id, grain, awaited = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1'
local leases, now = p .. 'leases', now_ms()
local reader = reader_of(p, processor)
if not reader then
  return redis.error_reply('GONE this processor is not registered: it was retired')
end
local noted = call(
  'HMGET', leases, processor, 'commits ' .. processor, 'begun ' .. processor, 'strikes ' .. processor,
  'deaths ' .. processor
)
if reader.fence ~= fence or string.match(noted[1] or '', '^%d+ (.+)$') ~= worker then
  return redis.error_reply('FENCED another worker runs this processor here now')
end
local commits = tonumber(noted[2] or '0')
if commits == number then
  return {}
end
local moves = ordinal > reader.ordinal
local wrong = moves and wrong_place(p, ordinal, id)
if commits ~= number - 1 then
  wrong = 'NOPLACE commit ' .. text(number) .. ' does not follow ' .. text(commits) .. ', the last one there is'
end
if wrong then
  return redis.error_reply(wrong)
end
local waiting, trouble = p .. 'w:' .. processor, p .. 'x:' .. processor
local checkpoint_field, state_field = 'c:' .. processor, 's:' .. processor

-- How many arguments a change has, from where it begins.
local lengths = { D = 7, U = 6, L = 7, H = 2, B = 3 }
local function length(at)
  local kind = ARGV[at]
  if kind == 'P' then
    return 8 + tonumber(ARGV[at + 7])
  elseif kind == 'M' then
    return 3 + tonumber(ARGV[at + 2])
  end
  return lengths[kind]
end

-- All must be here before anything is done.
local known, results, missing, at = {}, {}, false, 9
while at <= #ARGV do
  local kind, aggregate, result = ARGV[at], ARGV[at + 1], 'A'
  if kind ~= 'B' and kind ~= 'H' then
    local its = known[aggregate] or call('HMGET', p .. 'a:' .. aggregate, checkpoint_field, 'v', 'c', 't')
    known[aggregate] = its
    if not its[2] then
      missing = true
      result = (erased_since(p, aggregate, 0) and 'E ' or 'F ') .. now
    end
  end
  results[#results + 1] = result
  at = at + length(at)
end
if missing then
  return results
end

-- A checkpoint is 'p5 event ms': p processed, n pending (tried again), f failed.
local function processed(checkpoint)
  if not checkpoint then
    return 0, 'p'
  end
  local status, version = string.match(checkpoint, '^(%a)(%d+) ')
  return status == 'p' and tonumber(version) or tonumber(version) - 1, status
end

local function note(aggregate, its, checkpoint, has_state, state)
  local key = p .. 'a:' .. aggregate
  its[1], its[3] = checkpoint, tonumber(its[3] or '0') + 1
  if has_state == '1' then
    call('HSET', key, checkpoint_field, checkpoint, 'c', its[3], state_field, state)
  else
    call('HSET', key, checkpoint_field, checkpoint, 'c', its[3])
  end
  if not its[4] or now - its[4] >= grain then
    its[4] = now
    call('HSET', key, 't', now)
    call('ZADD', p .. 'activity', now, aggregate)
  end
end

local function is_parked(aggregate)
  return call('ZSCORE', waiting, aggregate)
end

local function list_of(aggregate)
  return p .. 'q:' .. processor .. ' ' .. aggregate
end

local function park(aggregate, first, count)
  for i = first, first + count - 1 do
    call('RPUSH', list_of(aggregate), ARGV[i])
  end
end

-- An event that was begun on record has not killed its worker.
local function survived(aggregate)
  if not noted[3] and not noted[4] then
    return
  end
  for i, name in ipairs({ 'begun ', 'strikes ' }) do
    local its = noted[i + 2]
    if its and string.match(its, i == 1 and '^%d+ (.+)$' or '^%d+ %d+ (.+)$') == aggregate then
      call('HDEL', leases, name .. processor)
    end
  end
end

local progress = moves
results, at = {}, 9
while at <= #ARGV do
  local kind, aggregate, result = ARGV[at], ARGV[at + 1], 'A'
  local its = known[aggregate]
  local done, status = processed(its and its[1])
  if kind == 'D' then
    local first, last = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    if done >= last then
      result = 'S'
    elseif status == 'f' or (its[1] and first ~= done + 1) or (status == 'n' and is_parked(aggregate)) then
      result = 'O'
    else
      local checkpoint = 'p' .. last .. ' ' .. ARGV[at + 4] .. ' ' .. now
      note(aggregate, its, checkpoint, ARGV[at + 5], ARGV[at + 6])
    end
    survived(aggregate)
  elseif kind == 'P' then
    local version = tonumber(ARGV[at + 2])
    if (its[1] and version ~= done + 1) or (status ~= 'p' and is_parked(aggregate)) then
      result = 'O'
    else
      note(aggregate, its, ARGV[at + 4] .. version .. ' ' .. ARGV[at + 3] .. ' ' .. now, '0')
      call('ZADD', waiting, ARGV[at + 5], aggregate)
      call('HSET', trouble, aggregate, ARGV[at + 6])
      park(aggregate, at + 8, tonumber(ARGV[at + 7]))
    end
    survived(aggregate)
  elseif kind == 'M' then
    park(aggregate, at + 3, tonumber(ARGV[at + 2]))
    call('ZADD', waiting, 'NX', now, aggregate)
  elseif kind == 'U' then
    call('LPOP', list_of(aggregate))
    if done >= tonumber(ARGV[at + 2]) then
      result = 'S'
    else
      local checkpoint = 'p' .. ARGV[at + 2] .. ' ' .. ARGV[at + 3] .. ' ' .. now
      note(aggregate, its, checkpoint, ARGV[at + 4], ARGV[at + 5])
    end
    call('HDEL', trouble, aggregate)
    if call('EXISTS', list_of(aggregate)) == 1 then
      call('ZADD', waiting, now, aggregate)
    else
      call('ZREM', waiting, aggregate)
    end
    survived(aggregate)
    progress = true
  elseif kind == 'L' then
    note(aggregate, its, ARGV[at + 4] .. ARGV[at + 2] .. ' ' .. ARGV[at + 3] .. ' ' .. now, '0')
    call('ZADD', waiting, ARGV[at + 5], aggregate)
    call('HSET', trouble, aggregate, ARGV[at + 6])
    survived(aggregate)
  elseif kind == 'H' then
    call('UNLINK', list_of(aggregate))
    call('ZREM', waiting, aggregate)
    call('HDEL', trouble, aggregate)
  else -- 'B'
    call('HSET', leases, 'begun ' .. processor, ARGV[at + 2] .. ' ' .. aggregate)
  end
  results[#results + 1] = result
  at = at + length(at)
end

call('HSET', leases, 'commits ' .. processor, text(number))
if moves then
  reader.ordinal, reader.id = ordinal, id
  save_reader(p, processor, reader)
  call('XGROUP', 'SETID', p .. 'entries', processor, id, 'ENTRIESREAD', text(ordinal))
end
if noted[5] and moves then
  local until_here, last = string.match(noted[5], '%d+$'), call('HGET', p .. 'head', 'ordinal')
  if ordinal >= math.min(tonumber(until_here), tonumber(last)) then
    call('HDEL', leases, 'deaths ' .. processor)
  end
end
if progress and awaited then
  call('SPUBLISH', p .. 'bell', ordinal)
end
return results
