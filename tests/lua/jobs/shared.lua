local function refuse(code)
  return redis.error_reply(code .. ' the script says no')
end
