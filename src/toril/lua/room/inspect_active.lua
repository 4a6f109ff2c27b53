#!lua flags=no-writes
-- What is not as it must be with those who were let in. For the checker.
-- keyspace: room
-- keys: base meta
-- args: lane, the first of them, how many
-- result: how many there were, then a promise and what is wrong with it, in turn
-- include: room/_room

local p, lane, from, count = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local l = p .. lane .. ':'
local found = call('ZRANGE', l .. 'active', from, from + count - 1, 'WITHSCORES')
local result = { #found / 2 }
for i = 1, #found, 2 do
  local its = ticket_of(l, found[i])
  local wrong
  if not its then
    wrong = 'is not known'
  elseif its.s ~= 'ready' and its.s ~= 'inside' then
    wrong = 'is ' .. its.s
  elseif tonumber(its.e) ~= tonumber(found[i + 1]) then
    wrong = 'ends at ' .. its.e .. ', and at ' .. found[i + 1]
  elseif its.u ~= '' and call('GET', p .. 'u:' .. its.u) ~= lane .. ' ' .. found[i] then
    wrong = 'is not its user\'s ticket'
  end
  if wrong then
    result[#result + 1] = 'P5'
    result[#result + 1] = lane .. ': ticket ' .. found[i] .. ' was let in, and ' .. wrong
  end
end
return result
