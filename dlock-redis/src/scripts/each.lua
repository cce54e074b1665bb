-- The script in the middle for many requests at once, as if they had come one after the other.
--
-- Each fails alone, and says why; what failed may have left replication switched off. Only if the server is a
-- replica, which it is to all of them, nothing was written, and whoever asks is to leave. KEYS: two of each.
-- ARGV: three arguments that all have in common, behind the first, and the first one of each.
local call, answers = redis.call, {}
local second, third, fourth = ARGV[1], ARGV[2], ARGV[3]
local function one(KEYS, ARGV)
--one
end
--simple
for i = 1, #KEYS / 2 do
  if not answers[i] then
    local ok, answer = pcall(one, {KEYS[2 * i - 1], KEYS[2 * i]}, {ARGV[i + 3], second, third, fourth})
    if not ok then
      redis.set_repl(redis.REPL_ALL)
      local why = type(answer) == 'table' and answer.err or tostring(answer)
      if why:find('READONLY', 1, true) then error(answer, 0) end
      answer = {'E', why}
    end
    answers[i] = answer
  end
end
return answers
