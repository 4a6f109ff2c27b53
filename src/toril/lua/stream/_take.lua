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

-- The job whose turn it is: of the tenant whose turn it is, the one that has been ready for longest.
local function choose(level)
  while true do
    local tenant = call('LPOP', p .. 'ring:' .. level)
    if not tenant then
      return nil
    end
    local ready = p .. 'r:' .. level .. ':' .. tenant
    local id = call('LPOP', ready)
    if id then
      if call('EXISTS', ready) == 1 then
        call('RPUSH', p .. 'ring:' .. level, tenant)
      end
      if call('EXISTS', p .. 'j:' .. id) == 1 then
        return id
      end
    end
  end
end

-- A job as a worker gets it: level, entry, delivery, id ('' where it is the entry's), fields and values.
local function row_of(level, entry, delivery, id, fields)
  return { level, entry, delivery, id, fields }
end

-- Up to `count` jobs of a level, delivered to a consumer, appended to `rows`; how many there were.
local function take_level(level, count, consumer, rows)
  local stream, taken = stream_of(level), 0
  while taken < count do
    local asked = count - taken
    local reply = with_group(stream, 'XREADGROUP', 'GROUP', q.group, consumer, 'COUNT', asked, 'STREAMS', stream, '>')
    local entries = reply and reply[1][2] or {}
    for _, entry in ipairs(entries) do
      local id, fields = entry[1], entry[2]
      if fields[1] == 'h' then
        local job = choose(level)
        if job then
          local hash = p .. 'j:' .. job
          call('HSET', hash, 's', 'running', 'x', level .. ':' .. id)
          call('HSET', p .. 'bound', level .. ':' .. id, job)
          taken = taken + 1
          rows[#rows + 1] = row_of(level, id, 1, job, call('HGETALL', hash))
        else
          ack(level, id, '') -- its job was cancelled
          tally('tokens', -1)
        end
      elseif any_cancels and call('HDEL', p .. 'cancels', id) == 1 then
        ack(level, id, '')
        tally('jobs', -1)
        tally('bytes', -#(as_table(fields).d or ''))
      else
        taken = taken + 1
        rows[#rows + 1] = row_of(level, id, 1, '', fields)
      end
    end
    if #entries < asked then
      break
    end
  end
  return taken
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

-- Up to `wanted` jobs for a consumer, by the queue's priorities.
local function take(wanted, consumer)
  local rows = {}
  if q.paused then
    return rows
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
        take_level(text(level), shares[level], consumer, rows)
      end
    end
    if #rows > 0 then
      call('HSET', META, 'turn', turn % #order)
    end
  end
  -- Strictly by level; with weights, this gives the turns that a level could not use to the others.
  for level = 0, q.levels - 1 do
    if #rows < wanted then
      take_level(text(level), wanted - #rows, consumer, rows)
    end
  end
  return rows
end
