-- The tracker: a hash at the destination, which says of each job of the old queue what became of it. A value
-- is 'letter timestamp digest', and the id at the destination where that is another. The letter is the state
-- the job came in (see STATES), or x: there was no such job; u: a scheduler of the same name is here already;
-- o: an older tool has copied it; b: it is here, but not in its state yet; r: on its way back; z: finished here, and gone from the old queue.

local STATES = {
  w = 'wait', p = 'prioritized', d = 'delayed', h = 'waiting-children', a = 'active', c = 'completed', f = 'failed',
}

-- Jobs of its own that a queue may have, and old jobs still come before them: each step has to pass them all.
local MOST_OWN = 10000

local function read_entry(value)
  local letter, timestamp, digest, other = string.match(value, '^(%a) (%d*) (%x*) ?(.*)$')
  return { letter = letter, timestamp = timestamp, digest = digest, other = other }
end

local function write_entry(q, id, letter, timestamp, digest, other)
  local value = letter .. ' ' .. timestamp .. ' ' .. digest
  call('HSET', q .. 'toril:migrated', id, other and other ~= '' and value .. ' ' .. other or value)
end

-- Of several that move the same queue, the last one goes on; the others stop at their next step.
local function superseded(q, runner)
  local its = call('HGET', q .. 'toril:migration', 'runner')
  if its ~= runner then
    return redis.error_reply('SUPERSEDED another process has taken over the migration to this queue')
  end
end
