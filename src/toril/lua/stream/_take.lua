-- Taking jobs: from the streams to a consumer.

local PROMOTED_AT_ONCE = 100

-- Jobs whose time has come; whether there are more, and when the next one is due (0 for none).
local function promote_due()
  local due = call('ZRANGEBYSCORE', p .. 'delayed', '-inf', text(now), 'LIMIT', 0, PROMOTED_AT_ONCE)
  for _, id in ipairs(due) do
    call('ZREM', p .. 'delayed', id)
    local its = call('HMGET', p .. 'j:' .. id, 'l', 'k', 't')
    if its[1] then
      enter(id, its[1], its[2], its[3])
    end
  end
  local first = call('ZRANGE', p .. 'delayed', 0, 0, 'WITHSCORES')
  return #due == PROMOTED_AT_ONCE, tonumber(first[2] or '0')
end

-- The jobs whose turn it is, up to `count`: tenants take turns, and of each comes first what has been ready for
-- longest.
local function choose(level, count)
  local ring, ids = p .. 'ring:' .. level, {}
  while #ids < count do
    local tenants = call('LPOP', ring, count - #ids)
    if not tenants then
      break
    end
    local each = 1
    if #tenants == 1 and call('EXISTS', ring) == 0 then
      each = count - #ids -- nobody to take turns with
    end
    for _, tenant in ipairs(tenants) do
      local ready = p .. 'r:' .. level .. ':' .. tenant
      for _, id in ipairs(call('LPOP', ready, each) or {}) do
        ids[#ids + 1] = id
      end
      if call('EXISTS', ready) == 1 then
        call('RPUSH', ring, tenant)
      end
    end
  end
  return ids
end

-- Bind tokens to the jobs whose turn it is, appended to `jobs`. A token without a job is spent: its job was
-- cancelled.
local function bind(level, tokens, jobs)
  local ids, bound = choose(level, #tokens), {}
  for place, id in ipairs(ids) do
    local entry = tokens[place]
    bound[#bound + 1] = level .. ':' .. entry
    bound[#bound + 1] = id
    jobs[#jobs + 1] = { entry, call('HGETALL', p .. 'j:' .. id), id }
  end
  in_parts(bound, function(...)
    call('HSET', p .. 'bound', ...)
  end)
  for place = #ids + 1, #tokens do
    ack(level, tokens[place], '')
    tally('tokens', -1)
  end
end

-- Up to `count` jobs of a level, delivered to a consumer, appended to `groups` as {level, jobs}; how many there
-- were. A job is {entry, fields and values}, and where it is not the entry itself, its id.
local function take_level(level, count, consumer, groups)
  local stream, jobs = stream_of(level), {}
  while #jobs < count do
    local asked = count - #jobs
    local reply = with_group(stream, 'XREADGROUP', 'GROUP', q.group, consumer, 'COUNT', asked, 'STREAMS', stream, '>')
    local entries = reply and reply[1][2] or {}
    local tokens = {}
    for _, entry in ipairs(entries) do
      local id, fields = entry[1], entry[2]
      if fields[1] == 'h' then
        tokens[#tokens + 1] = id
      elseif any_cancels and call('HDEL', p .. 'cancels', id) == 1 then
        ack(level, id, '')
        tally('jobs', -1)
        tally('bytes', -#(as_table(fields).d or ''))
      else
        jobs[#jobs + 1] = entry
      end
    end
    if #tokens > 0 then
      bind(level, tokens, jobs)
    end
    if #entries < asked then
      break
    end
  end
  if #jobs > 0 then
    groups[#groups + 1] = { level, jobs }
  end
  return #jobs
end

-- The levels in the order of their turns: of weights 6 3 1, six of ten turns are level 0's, evenly spread.
local function turns(weights)
  local left, total, order = {}, 0, {}
  for _, weight in ipairs(weights) do
    total = total + weight
    left[#left + 1] = 0
  end
  for _ = 1, total do
    local best = 1
    for level, weight in ipairs(weights) do
      left[level] = left[level] + weight
      if left[level] > left[best] then
        best = level
      end
    end
    left[best] = left[best] - total
    order[#order + 1] = best - 1
  end
  return order
end

-- Up to `wanted` jobs for a consumer, by the queue's priorities; and how many there are.
local function take(wanted, consumer)
  local groups, taken = {}, 0
  if q.paused then
    return groups, 0
  end
  if q.weights ~= '' then
    local weights = {}
    for weight in string.gmatch(q.weights, '%d+') do
      weights[#weights + 1] = tonumber(weight)
    end
    local order, shares, turn = turns(weights), {}, tonumber(q.turn or '0')
    for _ = 1, wanted do
      local level = order[turn % #order + 1]
      shares[level] = (shares[level] or 0) + 1
      turn = turn + 1
    end
    for level = 0, q.levels - 1 do
      if shares[level] then
        taken = taken + take_level(text(level), shares[level], consumer, groups)
      end
    end
    if taken > 0 then
      call('HSET', META, 'turn', turn % #order)
    end
  end
  -- Strictly by level; with weights, this gives the turns that a level could not use to the others.
  for level = 0, q.levels - 1 do
    if taken < wanted then
      taken = taken + take_level(text(level), wanted - taken, consumer, groups)
    end
  end
  return groups, taken
end
