#!lua flags=allow-oom
-- Let readers of a projection see another generation, or let a generation be retired that they do not see: so
-- that they never see one that is.
-- keyspace: log
-- keys: base generations
-- args: projection, generation, 'see'; or projection, generation, 'retire', its record from now on
-- result: '' done; else the stage it is in, or 'current', and nothing was done

local key, projection, number = KEYS[2], ARGV[1], ARGV[2]
local field = projection .. '@' .. number
local stage = string.match(redis.call('HGET', key, field) or 'loaded', '^%a+')
if ARGV[3] == 'see' then
  if stage ~= 'loaded' then
    return stage
  end
  redis.call('HSET', key, projection, number)
elseif (redis.call('HGET', key, projection) or '1') == number then
  return 'current'
elseif stage ~= 'retired' then
  redis.call('HSET', key, field, ARGV[4])
end
return ''
