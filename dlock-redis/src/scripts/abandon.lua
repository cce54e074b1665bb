-- Undoes a request, whatever became of it. The tombstone keeps late copies of it from taking effect. KEYS: x,
-- t. ARGV: id, window
local id, window = ARGV[1], ARGV[2]
--state
at(KEYS[1], KEYS[2], id)
although_full()
call('SET', z, '', 'PX', TOMB)
settle()
local answer, token = 'N', ''
local held, w = find(id)
if w then
  forget(w)
  answer = 'W'
-- A minimum hold stays: it was asked for, and it is no one's lease.
elseif held and held.phase ~= 'k' then
  answer, token = 'G', held.token
  let_go(held, 'R')
end
admit()
return {answer, token, finish()}
