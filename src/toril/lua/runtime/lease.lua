#!lua flags=allow-oom
-- Take a partition for a processor where nobody has it, or keep one that we have: for a time.
-- keyspace: partition
-- keys: base head
-- args: worker, ms it lasts, 'take' or 'keep', processors (each registered as a reader)
-- result: for each: {1, ordinal, id, fence, last ordinal there is, commits there were, deaths, strikes,
--         version, aggregate} or {0, worker}
--
-- Taken, it has a new fence, also where the same worker had it before. `deaths` is how often in a row a worker
-- went without giving it back, though there was something to do, and without having got anywhere; `strikes`
-- is how often in a row one went while this one event, begun on record, was running.
-- include: log/_partition
-- include: log/_readers

local p, worker, lasts, how = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local leases, now, results = p .. 'leases', now_ms(), {}
local SOMEWHERE = 100 -- a worker that is so many events further has got somewhere

local function strike(processor, begun)
  local count, event = string.match(call('HGET', leases, 'strikes ' .. processor) or '', '^(%d+) (.+)$')
  count = event == begun and tonumber(count) + 1 or 1
  call('HSET', leases, 'strikes ' .. processor, count .. ' ' .. begun)
  call('HDEL', leases, 'begun ' .. processor)
end

local function note_death(processor, its, last)
  local begun = call('HGET', leases, 'begun ' .. processor)
  if begun then
    strike(processor, begun)
  end
  if begun or its.ordinal < tonumber(last) then
    local count = string.match(call('HGET', leases, 'deaths ' .. processor) or '0', '^%d+') + 1
    call('HSET', leases, 'deaths ' .. processor, count .. ' ' .. text(its.ordinal + SOMEWHERE))
  end
end

for i = 4, #ARGV do
  local processor = ARGV[i]
  local expires, owner = string.match(call('HGET', leases, processor) or '', '^(%d+) (.+)$')
  local its = reader_of(p, processor)
  if not its then
    results[#results + 1] = { 0, '' }
  elseif owner ~= worker and (how == 'keep' or (owner and tonumber(expires) > now)) then
    results[#results + 1] = { 0, owner or '' }
  else
    local last = call('HGET', p .. 'head', 'ordinal') or '0'
    if how == 'take' then
      if owner and owner ~= worker then
        note_death(processor, its, last)
      else
        call('HDEL', leases, 'begun ' .. processor)
      end
      its.fence = its.fence + 1
      save_reader(p, processor, its)
    end
    call('HSET', leases, processor, text(now + lasts) .. ' ' .. worker)
    local noted = call('HMGET', leases, 'commits ' .. processor, 'deaths ' .. processor, 'strikes ' .. processor)
    local strikes, version, aggregate = string.match(noted[3] or '', '^(%d+) (%d+) (.+)$')
    results[#results + 1] = {
      1, text(its.ordinal), its.id, text(its.fence), last, noted[1] or '0',
      string.match(noted[2] or '0', '^%d+'),
      strikes or '0', version or '0', aggregate or '',
    }
  end
end
return results
