#!lua flags=no-writes
-- Read jobs whole: all of them as they are at one moment.
-- keyspace: queue
-- keys: base meta
-- args: bytes to be read at most (one job is always read), then ids
-- result: for each job, as far as the bytes go: its fields, or the error; log lines, unfinished children,
--         results of children, ignored failures of children, failures of children (with times), whether it is
--         locked, whether its parent waits for it, and for its deduplication id: owner and time to live
-- include: queue/_queue

local q, budget = KEYS[1], tonumber(ARGV[1])
local found, size = {}, 0
for place = 2, #ARGV do
  local id = ARGV[place]
  local key = q .. id
  local fields = redis.pcall('HGETALL', key)
  if fields.err then
    found[#found + 1] = { fields.err, {}, {}, {}, {}, {}, 0, 0, {} }
  else
    local its = {}
    for at = 1, #fields, 2 do
      its[fields[at]] = fields[at + 1]
      size = size + #fields[at + 1] + 50
    end
    local logs, waits, results, ignored, failures, locked = {}, {}, {}, {}, {}, 0
    local more = { key .. ':logs', key .. ':lock', key .. ':dependencies' }
    if call('EXISTS', key .. ':processed', key .. ':failed', key .. ':unsuccessful', unpack(more)) > 0 then
      locked = call('EXISTS', key .. ':lock')
      logs = call('LRANGE', key .. ':logs', 0, -1)
      waits = call('SMEMBERS', key .. ':dependencies')
      results = call('HGETALL', key .. ':processed')
      ignored = call('HGETALL', key .. ':failed')
      failures = call('ZRANGE', key .. ':unsuccessful', 0, -1, 'WITHSCORES')
    end
    for _, list in ipairs({ logs, waits, results, ignored }) do
      for _, part in ipairs(list) do
        size = size + #part
      end
    end
    local awaited, owner = 0, {}
    if its.parentKey then
      awaited = call('SISMEMBER', its.parentKey .. ':dependencies', key)
    end
    if its.deid then
      local dedup = q .. 'de:' .. its.deid
      owner = { call('GET', dedup) or '', call('PTTL', dedup) }
    end
    found[#found + 1] = { fields, logs, waits, results, ignored, failures, locked, awaited, owner }
  end
  if size > budget then
    break
  end
end
return found
