#!lua flags=allow-oom
-- Let readers of a projection see another generation, or let a generation be retired that they do not see: so
-- that they never see one that is. What they saw before is written with it, each generation once, and none that
-- is retired: nobody can go back to that. Or note what is known of a generation: nothing else, once it is retired.
-- keyspace: log
-- keys: base generations
-- args: projection, generation, 'see', or 'back' to the one that they saw before; or projection, generation,
--       'retire' or 'note', its record from now on; noted as '', it is not known any more
-- result: '' done; else the stage it is in, or 'current', or 'other' where they saw another one before, and
--         nothing was done

local key, projection, number = KEYS[2], ARGV[1], ARGV[2]
local field = projection .. '@' .. number
local stage = string.match(redis.call('HGET', key, field) or 'loaded', '^%a+')
local current = redis.call('HGET', key, projection)
if not current then
  -- The first generation is seen without a word, unless it came from elsewhere: then none is, until this says so.
  current = redis.call('HEXISTS', key, projection .. '@1') == 1 and '' or '1'
end
local before, last = {}, nil
for each in string.gmatch(redis.call('HGET', key, projection .. ' before') or '', '%d+') do
  last = each
  if each ~= number then
    before[#before + 1] = each
  end
end
if ARGV[3] == 'note' then
  local over = stage == 'retiring' or stage == 'retired'
  if over and string.match(ARGV[4], '^%a+') ~= 'retired' then
    return stage
  elseif ARGV[4] == '' then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, ARGV[4])
  end
elseif ARGV[3] ~= 'retire' then
  if stage ~= 'loaded' then
    return stage
  elseif current == number then
    return ''
  end
  if ARGV[3] == 'see' then
    if current ~= '' then
      before[#before + 1] = current
    end
  elseif last ~= number then
    return 'other'
  end
  redis.call('HSET', key, projection, number, projection .. ' before', table.concat(before, ' '))
elseif current == number then
  return 'current'
else
  if last then
    redis.call('HSET', key, projection .. ' before', table.concat(before, ' '))
  end
  if stage ~= 'retired' then
    redis.call('HSET', key, field, ARGV[4])
  end
end
return ''
