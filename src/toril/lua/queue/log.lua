#!lua
-- Add a line to a job's log.
-- keyspace: queue
-- keys: base meta
-- args: id, line, how many lines to keep or ''
-- result: how many lines there are, or -1 when there is no such job
-- include: queue/_queue

local key = KEYS[1] .. ARGV[1]
if call('EXISTS', key) == 0 then
  return -1
end
local lines = call('RPUSH', key .. ':logs', ARGV[2])
if ARGV[3] == '' then
  return lines
end
local kept = tonumber(ARGV[3])
call('LTRIM', key .. ':logs', -kept, -1)
return math.min(kept, lines)
