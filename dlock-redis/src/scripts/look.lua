-- Shows the holders and the number of waiters. ARGV: window; for how long changes are published (0: as now;
-- -1: this client has stopped listening); 1 to end all holds. KEYS: x, t
local window, watching = ARGV[1], tonumber(ARGV[2])
--state
at(KEYS[1], KEYS[2], '')
although_full()
settle()
local ended = 0
if ARGV[3] == '1' then
  if hold then
    let_go(hold, 'F')
    ended = 1
  end
  for _, id in ipairs(call('ZRANGE', s, 0, -1)) do
    local w = read_e(id)
    if w then
      let_go(w, 'F')
      ended = ended + 1
    end
  end
end
admit()
sweep()
if watching > 0 then
  -- Changes are published without a gap from now on. Their numbers start above all earlier ones, whatever was
  -- forgotten.
  if not watched then call('HSET', e, 'b', micros, 'i', micros) end
  watched = true
  local before = tonumber(call('HGET', e, 'o') or '0')
  call('HSET', e, 'o', string.format('%d', math.max(before, now + watching)))
  last(watching, q)
  if hold and not noted then note(hold.phase, hold.id) end
-- A dummy change, with a number that all watchers ignore: does anyone listen?
elseif watching < 0 and watched and publish(x, '0R' .. string.rep('-', 24)) == 0 then
  watched = false
  call('HDEL', e, 'o')
end
local holders = {}
if hold then holders[1] = {hold.id, 'x', '0', hold.token, 0, hold.owner} end
for _, id in ipairs(call('ZRANGE', s, 0, -1)) do
  local w = read_e(id)
  if w then holders[#holders + 1] = {id, 's', w.limit, w.token, life_of(w), w.owner} end
end
local waiting, told = call('ZCARD', q), call('HMGET', e, 'i', 'b')
local more = finish()
if hold then holders[1][5] = call('PTTL', x) end
return {ended, now, waiting, told[1] or '', told[2] or '', holders, more}
