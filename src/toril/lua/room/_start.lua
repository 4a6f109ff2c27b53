-- A room that gathers people opens: those who are there are shuffled, those who come later follow them.

local function start(p, room, us)
  room.phase = 'open'
  for _, lane in ipairs(LANES) do
    local line = line_of(p .. lane .. ':')
    call('HSET', p .. lane .. ':line', 'sealed', line.issued, 'placed', line.head, 'first', line.head)
    if line.issued > line.head then
      room.phase = 'shuffling'
    end
  end
  call('HSET', p .. 'meta', 'phase', room.phase)
  note(p, us, 'what', 'start', 'seed', room.seed)
end
