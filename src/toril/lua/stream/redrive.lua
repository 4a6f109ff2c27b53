#!lua
-- Give dead letters another chance: each is the job it was, with its id, and its attempts start anew.
-- keyspace: stream
-- keys: base meta
-- args: ids of the jobs
-- result: for each 1, or 0 where there is no such letter
-- include: stream/_stream

if not configured() then
  return redis.error_reply(UNCONFIGURED)
end
local codes, letters, bytes, jobs = {}, {}, 0, 0
for place, id in ipairs(ARGV) do
  local letter = call('HGET', p .. 'buried', id)
  local entry = letter and call('XRANGE', p .. 'dead', letter, letter)[1]
  codes[place] = 0
  if entry and not letters[id] then
    letters[id] = as_table(entry[2])
    letters[id].letter = letter
    codes[place] = 1
    jobs, bytes = jobs + 1, bytes + #letters[id].data
  end
end
local full = jobs > 0 and overfull(jobs, bytes)
if full then
  return redis.error_reply(full .. '; nothing was redriven')
end
for place, id in ipairs(ARGV) do
  local its = codes[place] == 1 and letters[id]
  if its then
    call('XDEL', p .. 'dead', its.letter)
    call('HDEL', p .. 'buried', id)
    tally('redriven', 1)
    if its.reason == 'unparsable' then
      call('XADD', p .. 'inlet', '*', unpack(cjson.decode(its.data)))
    else
      tally('jobs', 1)
      tally('held', 1)
      tally('bytes', #its.data)
      local level = text(math.min(tonumber(its.level), q.levels - 1))
      call('HSET', p .. 'j:' .. id, 'n', its.name, 'd', its.data, 'o', its.options, 'l', level, 'k', its.key,
        't', its.tenant)
      enter(id, level, its.key, its.tenant)
    end
  end
end
write_tallies()
return codes
