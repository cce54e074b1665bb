-- Changes the mode of a lease in one step. A downgrade keeps the token. An upgrade gets a new one, and only
-- where no one else shares the lock: two sharers that both wait to upgrade would wait for each other. So the
-- second one is told of the deadlock, and gives up.
--
-- *The first one may have given up too*, without saying so. Its wish to upgrade counts for the length of a
-- lease since it last asked, and ends earlier if the lease ends or it asks to share. If two ask less often
-- than that, each is told that the other shares: neither is granted, and neither waits in the server.
--
-- *It stops halfway* (a missing permission, a slot that is moving to another node), and nothing is rolled
-- back. So a downgrade writes the shared entry before it deletes the exclusive one: until then others find
-- the stronger mode. The client counts on the weaker. KEYS: x, t. ARGV: id, window, mode, limit
local id, window, mode, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
--state
-- The sharer that wants to upgrade, if it still shares, and until when that counts.
local function read_u()
  local wish = call('HGET', e, 'u')
  local w = wish and read_e(wish:sub(1, 24))
  if w and (w.phase == 'h' or w.phase == 'p') then return w.id, tonumber(wish:sub(25)) or 0 end
end
at(KEYS[1], KEYS[2], id)
although_full()
settle()
admit()
local held = find(id)
if not held or held.phase == 'k' then return {'N', finish()} end
if held == hold and mode == 's' then
  local other = mismatch(limit)
  if other then return {'M', other, finish()} end
  held.mode, held.limit, held.ends, held.chan = 's', limit, 0, ''
  join(held)
  grant(held, held.ttl, held.token)
  clear_x()
  admit()
  return {'G', held.token, held.ttl, now, finish()}
end
if held ~= hold and mode == 'x' then
  if call('ZCARD', s) > 1 then
    local other, till = read_u()
    if other and other ~= id and till > now then return {'D', finish()} end
    call('HSET', e, 'u', id .. string.format('%d', now + held.ttl))
    return {'B', finish()}
  end
  forget(held)
  call('HDEL', e, 'u')
  held.mode, held.limit, held.written = 'x', '0', false
  grant(held, held.ttl, mint())
  return {'G', held.token, held.ttl, now, finish()}
end
if held ~= hold and limit ~= held.limit then return {'M', held.limit, finish()} end
-- A sharer that asks to share has given up its upgrade.
if mode == 's' and read_u() == id then call('HDEL', e, 'u') end
local life = prolong(held, held.ttl)
return {'G', held.token, life, now, finish()}
