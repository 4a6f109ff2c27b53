-- A room of several shards lets people in by rounds: the room allots (`allot`), each shard serves (`serve`), the
-- room settles (`settle`). One round is open at a time; whoever comes next goes on with it where it was cut off.
--
-- A server that dies may take with it what no replica has heard of. So a round is known by its number and by when
-- it began, and each shard knows which it has done: a room that forgot a round finds out, and hears what came of
-- it before it lets anybody else in; and a shard that forgot one says so.
--
-- The order between shards is made by cuts: how many tickets each shard had given at one moment. Everybody of a
-- cut is let in before anybody of the next.
--
-- The room's own `<l>line` has the budget, cuts_before (cuts that were dropped, because all of them are settled),
-- cut (the last of those), and of each shard s what it last said: head:s, active:s, waiting:s, admitted:s, and
-- alive:s (the number of a cut, and how many wait up to it, and up to those that follow).

local AHEAD = 64 -- cuts that are looked at in one round

local function numbers_of(said)
  local numbers = {}
  for number in string.gmatch(said or '', '%d+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  return numbers
end

-- The next cuts, and how many were before them.
local function cuts_of(l)
  local cuts = {}
  for i, cut in ipairs(call('LRANGE', l .. 'cuts', 0, AHEAD - 1)) do
    cuts[i] = numbers_of(cut)
  end
  return cuts, tonumber(call('HGET', l .. 'line', 'cuts_before') or '0')
end
