#!lua flags=no-writes
-- How seats stand. A hold that has ended, and was not swept yet, holds nothing.
-- keyspace: seats
-- keys: base head
-- args: seat, seat …
-- result: for each: 'a', 'h', 's', or '' where there is no such seat
-- include: room/_seats

local b, now, found = KEYS[1], now_ms(), {}
for i, seat in ipairs(ARGV) do
  local state = call('HGET', b .. 'seats', seat) or ''
  if string.sub(state, 1, 1) == 'h' and hold_of(b, string.sub(state, 3)).ends <= now then
    state = 'a'
  end
  found[i] = string.sub(state, 1, 1)
end
return found
