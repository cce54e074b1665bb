-- Turns a lease into another mode, with nobody in between. To share is a grant of the same token; to be alone
-- is one of a new token, and only where nobody else shares: who waits for that with another holds what the
-- other waits for. So the second one is told, and gives up.
--
-- *The first one may have given up too*, and says nothing. It counts as one that wants to be alone for the
-- length of a lease since it last asked, and no longer if it ends before that, is let go, or asks to share.
-- Where two ask more seldom than that, each is told that the other is there: nobody is granted by it, and
-- nobody waits in the server.
--
-- *It stops halfway* (a permission that is missing, a slot that is on its way to another node), and nothing
-- is rolled back. So to share is written down before the hold is taken away: until then others find the
-- stronger mode. Who asked counts as the weaker. KEYS: x, t. ARGV: id, window, mode, limit
local id, window, mode, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
--state
-- Who wants to be alone, if it still shares; and until when that counts.
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
-- Who is content to share has given up to be alone.
if mode == 's' and read_u() == id then call('HDEL', e, 'u') end
local life = prolong(held, held.ttl)
return {'G', held.token, life, now, finish()}
