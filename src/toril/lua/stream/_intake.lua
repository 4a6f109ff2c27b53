-- The inlet: what programs in any language have added, taken into the queue with the checks that all jobs get.

local TAKEN_AT_ONCE = 100
local LONGEST_TEXT = 256
local KNOWN = { data = true, name = true, key = true, tenant = true, priority = true, delay = true, unique = true }

local CONTINUATION = '[\128-\191]'
local function is_utf8(value)
  value = string.gsub(value, '[\194-\223]' .. CONTINUATION, 'a')
  value = string.gsub(value, '[\224-\239]' .. CONTINUATION .. CONTINUATION, 'a')
  value = string.gsub(value, '[\240-\244]' .. CONTINUATION .. CONTINUATION .. CONTINUATION, 'a')
  return not string.find(value, '[\128-\255]')
end

local function short_text(name, value)
  if type(value) ~= 'string' or value == '' or #value > LONGEST_TEXT then
    return name .. ' must be text of 1 to ' .. LONGEST_TEXT .. ' bytes'
  end
  if string.find(value, '[%z\1-\31\127]') or not is_utf8(value) then
    return name .. ' must be UTF-8 without control characters'
  end
end

local function whole(value)
  local number = tonumber(value)
  return number and number >= 0 and number < 2 ^ 53 and number == math.floor(number) and number
end

-- A job from the fields of an entry, or why there is none in them.
local function read_foreign(fields)
  local its = {}
  for at = 1, #fields, 2 do
    local name = fields[at]
    if not KNOWN[name] then
      return nil, 'there is no field ' .. string.sub(name, 1, 60)
    elseif its[name] then
      return nil, 'the field ' .. name .. ' is there twice'
    end
    its[name] = fields[at + 1]
  end
  if not its.data then
    return nil, 'the field data is missing'
  elseif #its.data > tonumber(q.largest) then
    return nil, 'data has ' .. #its.data .. ' bytes, of at most ' .. q.largest
  end
  local is_json, value = pcall(cjson.decode, its.data)
  if not is_json then
    return nil, 'data is not JSON'
  end
  if q.route ~= '' and type(value) == 'table' then
    for name, field in pairs(cjson.decode(q.route)) do
      local routed = value[field]
      if its[name] == nil and routed ~= nil and routed ~= cjson.null and routed ~= '' then
        its[name] = routed
      end
    end
  end
  local priority, delay = whole(its.priority or '0'), whole(its.delay or '0')
  local wrong = its.name and short_text('name', its.name)
    or its.key and short_text('key', its.key)
    or its.tenant and short_text('tenant', its.tenant)
    or its.unique and short_text('unique', its.unique)
    or not priority and 'priority must be a whole number from 0 up'
    or not delay and 'delay must be a whole number of milliseconds from 0 up'
  if wrong then
    return nil, wrong
  end
  return {
    name = its.name or 'job',
    data = its.data,
    options = '',
    key = its.key or '',
    tenant = its.tenant or '',
    level = text(math.min(priority, q.levels - 1)),
    unique = its.unique,
    delay = delay,
  }
end

-- An entry that is no job is a dead letter at once, with the fields that it had.
local function bury_foreign(entry, reason)
  local job = { id = next_id(), name = '', data = cjson.encode(entry[2]), options = '', level = '0', key = '',
    tenant = '', attempts = '0', first_error = '' }
  bury(job, 'unparsable', '', '0', reason, 'inlet ' .. entry[1])
end

-- What was taken counts as read by the group, so that its lag is what is left in the inlet.
local function count_read(last)
  local inlet = p .. 'inlet'
  local added = as_table(call('XINFO', 'STREAM', inlet))['entries-added']
  with_group(inlet, 'XGROUP', 'SETID', inlet, q.group, last, 'ENTRIESREAD', added - call('XLEN', inlet))
end

-- Take jobs in, as far as the backlog allows; whether there may be more that it allows.
local function take_in()
  local entries, last = call('XRANGE', p .. 'inlet', '-', '+', 'COUNT', TAKEN_AT_ONCE), nil
  for _, entry in ipairs(entries) do
    local job, wrong = read_foreign(entry[2])
    if job and overfull(1, #job.data) then
      break
    end
    if not job then
      bury_foreign(entry, wrong)
    else
      local unique = job.unique and p .. 'u:' .. job.unique
      if not (unique and call('EXISTS', unique) == 1) then
        local id = add_job(job, job.delay > 0 and now + job.delay or 0)
        if unique then
          call('SET', unique, id, 'PX', q.unique_for)
        end
      end
    end
    last = entry[1]
    call('XDEL', p .. 'inlet', last)
  end
  if last then
    count_read(last)
  end
  return #entries == TAKEN_AT_ONCE and last == entries[TAKEN_AT_ONCE][1]
end
