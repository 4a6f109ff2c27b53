-- Aggregates that come into a partition, from the cold store or from the epoch before.

-- Whether the tenant of an aggregate is being erased, or has been since `ms`.
local function erased_since(p, aggregate, ms)
  local tenant = tenant_of(aggregate)
  if call('SISMEMBER', p .. 'walls', tenant) == 1 then
    return true
  end
  local erased = call('ZSCORE', p .. 'erased', tenant)
  return erased and tonumber(erased) >= ms
end

-- Its fields and values are the arguments from `first` on; none: it begins.
local function bring_in(p, aggregate, now, first)
  local FIELDS = 4000
  local key = p .. 'a:' .. aggregate
  call('HSET', key, 'v', 0, 'c', 0)
  for i = first, #ARGV, FIELDS do
    call('HSET', key, unpack(ARGV, i, math.min(i + FIELDS - 1, #ARGV)))
  end
  call('HINCRBY', key, 'c', 1)
  call('HSET', key, 't', now)
  call('ZADD', p .. 'activity', now, aggregate)
end
