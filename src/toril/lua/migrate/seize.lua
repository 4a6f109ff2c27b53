#!lua flags=allow-oom
-- Take jobs that came from another queue out of the hands of workers, to give them back.
-- keyspace: queue
-- keys: base meta
-- args: runner, then for each job: its id as the other queue has it, and its turn, which is noted for one that
--       waits: where this is cut off, the order is known
-- result: for each: what (back: taken out; done: finished here, or removed; busy: being worked on; none: not
--         ours; lost: in no state), its id here, where it was taken out of (state and score), its turn
-- include: queue/_queue
-- include: migrate/_tracker

local q = KEYS[1]
local refused = superseded(q, ARGV[1])
if refused then
  return refused
end

local WAITS = { 'delayed', 'prioritized', 'waiting-children' }

local function take_out(id, entry)
  if entry.letter == 'r' then
    local noted = call('HGET', q .. 'toril:migration', 'r:' .. id) or 'none   '
    return 'back', string.match(noted, '^(%S+) (%S*) (%S*) ')
  end
  if call('EXISTS', q .. id) == 0 then
    return 'done'
  elseif entry.letter == 'b' then
    return 'back', 'none', ''
  end
  for _, state in ipairs({ 'completed', 'failed' }) do
    local score = call('ZSCORE', q .. state, id)
    if score then
      if STATES[entry.letter] ~= state then
        return 'done'
      end
      call('ZREM', q .. state, id)
      return 'back', state, score
    end
  end
  for _, state in ipairs(WAITS) do
    local score = call('ZSCORE', q .. state, id)
    if score then
      call('ZREM', q .. state, id)
      return 'back', state, score
    end
  end
  if call('LREM', q .. 'wait', -1, id) + call('LREM', q .. 'paused', -1, id) > 0 then
    return 'back', 'wait', ''
  end
  if call('EXISTS', q .. id .. ':lock') == 1 then
    return 'busy'
  end
  if call('LREM', q .. 'active', -1, id) > 0 then
    call('SREM', q .. 'stalled', id)
    return 'back', 'active', ''
  end
  return 'lost'
end

local results = {}
for place = 2, #ARGV, 2 do
  local theirs, turn = ARGV[place], ARGV[place + 1]
  local value = call('HGET', q .. 'toril:migrated', theirs)
  local entry = value and read_entry(value)
  if not entry or not (STATES[entry.letter] or entry.letter == 'r' or entry.letter == 'b') then
    results[#results + 1] = { 'none', '', '', '', '' }
  else
    local id = entry.other ~= '' and entry.other or theirs
    local what, state, score, noted = take_out(id, entry)
    if what == 'back' and entry.letter ~= 'r' then
      local value = table.concat({ state, score, turn, theirs }, ' ')
      call('HSET', q .. 'toril:migration', 'r:' .. id, value)
      write_entry(q, theirs, 'r', entry.timestamp, entry.digest, entry.other)
    end
    results[#results + 1] = { what, id, state or '', score or '', noted or turn }
  end
end
mark_delayed(q)
return results
