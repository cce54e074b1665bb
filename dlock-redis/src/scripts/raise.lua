-- Raises the token of a held lease, and the bucket's last one: no later grant gets a smaller one. Only while
-- it is held: a client that lost the lock must not affect later grants. KEYS: x, t. ARGV: id, window, token
local id, window, to = ARGV[1], ARGV[2], ARGV[3]
--state
at(KEYS[1], KEYS[2], id)
although_full()
settle()
admit()
local function larger(a, b)
  if #a > #b or (#a == #b and a >= b) then return a end
  return b
end
local held = find(id)
if not held or held.phase == 'k' then return {'', finish()} end
held.token = larger(held.token, to)
if held == hold then write_x(held) else write_e(held) end
call('SET', t, larger(call('GET', t) or '0', held.token))
return {held.token, finish()}
