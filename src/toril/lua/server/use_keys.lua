#!lua flags=allow-oom
-- Note when API keys were last used; what is later stays, and a key that was revoked is not noted.
-- keyspace: server
-- keys: api_keys api_keys_used
-- args: digest, ms since 1970, digest, ms since 1970 …
-- result: how many were noted

local noted = 0
for at = 1, #ARGV, 2 do
  local digest, time = ARGV[at], tonumber(ARGV[at + 1])
  if redis.call('HEXISTS', KEYS[1], digest) == 1 then
    local before = tonumber(redis.call('HGET', KEYS[2], digest) or '0')
    if time > before then
      redis.call('HSET', KEYS[2], digest, ARGV[at + 1])
      noted = noted + 1
    end
  end
end
return noted
