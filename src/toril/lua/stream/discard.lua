#!lua flags=allow-oom
-- Throw dead letters away. Where one of them held up its key, the next job of that key is ready.
-- keyspace: stream
-- keys: base meta
-- args: ids of the jobs
-- result: for each 1, or 0 where there is no such letter
-- include: stream/_stream

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local codes = {}
for place, id in ipairs(ARGV) do
  local letter = call('HGET', p .. 'buried', id)
  codes[place] = 0
  if letter then
    local entry = call('XRANGE', p .. 'dead', letter, letter)[1]
    local key = entry and as_table(entry[2]).key or ''
    call('XDEL', p .. 'dead', letter)
    call('HDEL', p .. 'buried', id)
    tally('discarded', 1)
    if key ~= '' and call('HGET', p .. 'heads', key) == id then
      pass_on(key)
    end
    codes[place] = 1
  end
end
write_tallies()
return codes
