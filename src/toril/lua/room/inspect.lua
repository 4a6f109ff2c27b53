#!lua flags=no-writes
-- What is not as it must be in one stretch of places, and in the sums of a lane. For the checker.
-- keyspace: room
-- keys: base meta
-- args: lane, stretch or '' for the sums
-- result: a promise and what is wrong with it, in turn
-- include: room/_room
-- include: room/_line

local p, lane, stretch = KEYS[1], ARGV[1], ARGV[2]
local l = p .. lane .. ':'
local room, line = room_of(p), line_of(l)
local now = math.floor(now_us() / 1000)
local wrong = {}

local function expect(promise, right, ...)
  if not right then
    wrong[#wrong + 1] = promise
    wrong[#wrong + 1] = table.concat({ lane, ': ', ... })
  end
end

local function check_ticket(place)
  local number = ticket_at(l, line, place)
  local its = ticket_of(l, number)
  expect('P9', its, 'ticket ', number, ' has a place that waits, and is not known')
  if not its then
    return
  end
  expect('P9', its.s == 'waiting', 'ticket ', number, ' has a place that waits, and is ', its.s)
  expect('P3', its.p == text(place), 'ticket ', number, ' has the places ', its.p or 'none', ' and ', place)
  local seen = call('ZSCORE', l .. 'seen', number)
  expect('P9', seen, 'ticket ', number, ' waits, and nobody listens for it')
  if its.u ~= '' then
    local theirs = call('GET', p .. 'u:' .. its.u)
    expect('P4', theirs == lane .. ' ' .. number, 'a user of ticket ', number, ' is led to ', theirs or 'none')
  end
  for _, key in ipairs(keys_of(l, its)) do
    local theirs = string.match(call('GET', p .. 'i:' .. key) or 'none', '^%S+ %d+') or 'none'
    expect('P4', theirs == lane .. ' ' .. number, 'a key of ticket ', number, ' leads to ', theirs)
    expect('P4', call('PTTL', p .. 'i:' .. key) == -1, 'a key of ticket ', number, ' will be forgotten')
  end
end

if stretch == '' then
  local placed = 0
  for _, count in ipairs(call('HVALS', l .. 'counts')) do
    placed = placed + count
  end
  local seen = call('ZCARD', l .. 'seen')
  expect('P9', seen == line.waiting, line.waiting, ' wait, and ', seen, ' are listened for')
  if room.phase == 'open' then
    expect('P9', placed == line.waiting, line.waiting, ' wait, and ', placed, ' have a place')
  end
  expect('P3', line.head <= line.issued, 'place ', line.head, ' is settled, and ', line.issued, ' tickets were given')
  if next_alive(l, math.max(0, stretch_of(line.head + 1) * STRETCH), line.head) then
    expect('P3', false, 'somebody waits at a place that is settled')
  end
else
  local first = stretch * STRETCH
  local alive, place = 0, next_alive(l, first, math.min(first + STRETCH, line.issued))
  while place do
    alive = alive + 1
    check_ticket(place)
    place = next_alive(l, place, math.min(first + STRETCH, line.issued))
  end
  local counted = tonumber(call('HGET', l .. 'counts', stretch) or '0')
  expect('P7', counted == alive, 'stretch ', stretch, ' counts ', counted, ', and ', alive, ' wait there')
end
return wrong
