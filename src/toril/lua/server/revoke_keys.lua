#!lua flags=allow-oom
-- Revoke API keys.
-- keyspace: server
-- keys: api_keys api_keys_used
-- args: digest, digest …
-- result: how many there were

local revoked = 0
for _, digest in ipairs(ARGV) do
  revoked = revoked + redis.call('HDEL', KEYS[1], digest)
  redis.call('HDEL', KEYS[2], digest)
end
return revoked
