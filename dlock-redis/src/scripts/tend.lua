-- Runs when a claim window is over: a waiter that did not claim loses its turn, and the next one gets it.
-- Answers for how long the last open window remains (-1: none is open, 0: run again at once). KEYS: x, t.
-- ARGV: window
local window = ARGV[1]
--state
at(KEYS[1], KEYS[2], '')
although_full()
settle()
admit()
local more, life = finish(), -1
if hold and hold.phase == 'p' then life = call('PTTL', x) end
if sharing > 0 then
  for _, id in ipairs(call('ZRANGEBYSCORE', s, now, now + WINDOW, 'LIMIT', 0, 100)) do
    local w = read_e(id)
    if w and w.phase == 'p' then life = math.max(life, life_of(w)) end
  end
end
return more < 0 and 0 or life
