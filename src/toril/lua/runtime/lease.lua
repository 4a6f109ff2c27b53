#!lua flags=allow-oom
-- Take a partition for a processor, or keep it: for a time, and only where nobody else has it.
-- keyspace: partition
-- keys: base head
-- args: worker, ms it lasts, processors (each registered as a reader)
-- result: for each: {1, ordinal, id, fence, last ordinal there is, how often in a row a worker went without
--         giving it back, and without having got anywhere} or {0, worker}
-- include: log/_partition
-- include: log/_readers

local p, worker, lasts = KEYS[1], ARGV[1], tonumber(ARGV[2])
local now, results = now_ms(), {}
for i = 3, #ARGV do
  local processor = ARGV[i]
  local expires, owner = string.match(call('HGET', p .. 'leases', processor) or '', '^(%d+) (.+)$')
  local its = reader_of(p, processor)
  if not its then
    results[#results + 1] = { 0, '' }
  elseif owner and owner ~= worker and tonumber(expires) > now then
    results[#results + 1] = { 0, owner }
  else
    if owner ~= worker then
      its.fence = its.fence + 1
      save_reader(p, processor, its)
    end
    call('HSET', p .. 'leases', processor, text(now + lasts) .. ' ' .. worker)
    local deaths = 'deaths ' .. processor
    if owner and owner ~= worker then
      call('HINCRBY', p .. 'leases', deaths, 1)
    end
    local last = call('HGET', p .. 'head', 'ordinal') or '0'
    local died = call('HGET', p .. 'leases', deaths) or '0'
    results[#results + 1] = { 1, text(its.ordinal), its.id, text(its.fence), last, died }
  end
end
return results
