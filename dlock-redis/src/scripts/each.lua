-- Runs one script for many requests, as if they had come one after the other.
--
-- Each fails alone and reports why; a failed one may have left replication switched off. If the server is a
-- replica, it is one for all of them: then nothing was written, and the client must reconnect. KEYS: two of
-- each. ARGV: the second to fourth argument, which all share, then the first argument of each.
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
      local why = tostring(answer)
      if why:find('READONLY', 1, true) then error(answer, 0) end
      answer = {'E', why}
    end
    answers[i] = answer
  end
end
return answers
