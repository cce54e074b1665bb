-- Extends leases and queue entries, and repeats the request for the latter; many in one script, each
-- independently.
--
-- An expired lease is not revived: another may have held the lock meanwhile. No lease is shortened, so
-- renewals that overtake one another do no harm. The first renewal of a pushed grant confirms it. KEYS: x and
-- t for each item. ARGV: window, then for each item its id, whether it is queued (1) or a lease (0), and the
-- ttl
local window = ARGV[1]
--state
local answers = {}
although_full()
for i = 1, #KEYS / 2 do
  local id, queued, ttl = ARGV[i * 3 - 1], ARGV[i * 3] == '1', tonumber(ARGV[i * 3 + 1])
  answers[i] = item(function()
    at(KEYS[i * 2 - 1], KEYS[i * 2], id)
    settle()
    local held, w = find(id)
    if held and held.phase ~= 'k' then
      if queued then return granted(held) end
      return {'L', prolong(held, ttl), now, finish()}
    end
    if not w or not queued then
      admit()
      return {'N', finish()}
    end
    w.ends = now + ttl
    write_e(w)
    come_back(id)
    last(ttl, q)
    local given = admit(id)
    local more = finish()
    if given then return {'G', given.token, given.ttl, now, more} end
    return {'Q', recheck(), now, call('ZRANK', q, id), more}
  end)
end
return answers
