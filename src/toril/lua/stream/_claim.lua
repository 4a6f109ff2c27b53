-- Entries that have changed hands, or lost their answer: what they are, and whether they may be run again.

-- A job that was delivered so often is a suspect: two workers were lost with it. Suspects run one at a time, so
-- that one that kills its worker does not take the others' deliveries with it.
local SUSPECT = 3
local suspects_wanted = math.huge

-- An entry that a consumer has now, appended to `rows`; a job that has crashed too often dies instead.
local function receive(level, entry, fields, consumer, rows)
  local stream = stream_of(level)
  local row = call('XPENDING', stream, q.group, entry, entry, 1, consumer)[1]
  local delivery = row and row[4] or 1
  if delivery >= SUSPECT and delivery <= tonumber(q.max_deliveries) then
    if suspects_wanted < 1 then
      -- Back to nobody, who is never heard of: somebody takes it over when it has no other suspect.
      call('XCLAIM', stream, q.group, 'nobody', 0, entry, 'IDLE', 0, 'RETRYCOUNT', delivery - 1, 'JUSTID')
      return
    end
    suspects_wanted = suspects_wanted - 1
  end
  local id = ''
  if fields[1] == 'h' then
    id = call('HGET', p .. 'bound', level .. ':' .. entry) or ''
    if id == '' then
      ack(level, entry, '') -- a token that nobody has bound to a job
      tally('tokens', -1)
      return
    end
  end
  local job = job_at(level, entry, id)
  local deliveries = job.crashes + delivery
  if any_cancels and call('HEXISTS', p .. 'cancels', job.id) == 1 then
    ack(level, entry, id)
    leave(job.id, job.held, job.key, #job.data)
    tally('cancelled', 1)
  elseif deliveries > tonumber(q.max_deliveries) then
    ack(level, entry, id)
    local why = 'its worker was lost ' .. text(deliveries - 1) .. ' times'
    die(job, 'crashed', consumer, text(deliveries - 1), why, level .. ' ' .. entry)
  else
    fields = id == '' and fields or call('HGETALL', p .. 'j:' .. id)
    rows[#rows + 1] = { level, entry, delivery, id, fields }
  end
end

-- Entries that were deleted while somebody had them. A token's job is still there, and becomes ready again; any
-- other one is lost.
local function miss(level, entry, missing)
  local id = call('HGET', p .. 'bound', level .. ':' .. entry)
  if id then
    call('HDEL', p .. 'bound', level .. ':' .. entry)
    tally('tokens', -1)
    local its = call('HMGET', p .. 'j:' .. id, 'l', 't')
    if its[1] then
      make_ready(id, its[1], its[2], true)
    end
    return
  end
  tally('lost', 1)
  tally('jobs', -1)
  missing[#missing + 1] = entry
end
