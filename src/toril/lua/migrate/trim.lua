#!lua flags=allow-oom
-- Take jobs off the end of a list that workers take from, if they are what is there.
-- keyspace: queue
-- keys: wait
-- args: ids, from the end on
-- result: 1, or 0 where there is something else

local there = redis.call('LRANGE', KEYS[1], -#ARGV, -1)
if #there ~= #ARGV then
  return 0
end
for place, id in ipairs(ARGV) do
  if there[#there - place + 1] ~= id then
    return 0
  end
end
redis.call('LTRIM', KEYS[1], 0, -(#ARGV + 1))
return 1
