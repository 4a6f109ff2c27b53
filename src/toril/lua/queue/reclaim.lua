#!lua flags=no-writes
-- Find the active jobs that are locked under some tokens: a worker that took jobs and never heard which.
-- keyspace: queue
-- keys: base meta
-- args: tokens
-- result: for each job found {token, id, fields…}
-- include: queue/_queue

local q, mine, found = KEYS[1], {}, {}
for _, token in ipairs(ARGV) do
  mine[token] = true
end
for _, id in ipairs(call('LRANGE', q .. 'active', 0, -1)) do
  local token = call('GET', q .. id .. ':lock')
  if token and mine[token] then
    local fields = call('HGETALL', q .. id)
    table.insert(fields, 1, id)
    table.insert(fields, 1, token)
    found[#found + 1] = fields
  end
end
return found
