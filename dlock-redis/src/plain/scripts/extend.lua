-- Compare and extend, many in one script; never made shorter. One whose expiry somebody took away gets it
-- back. Answers what is left of each, -2 where it is not held by that id. KEYS: the locks. ARGV: the id and
-- the ttl of each
local answers = {}
for i, key in ipairs(KEYS) do
  answers[i] = -2
  if redis.pcall('GET', key) == ARGV[i * 2 - 1] then
    if redis.call('PTTL', key) < tonumber(ARGV[i * 2]) then redis.call('PEXPIRE', key, ARGV[i * 2]) end
    answers[i] = redis.call('PTTL', key)
  end
end
return answers
