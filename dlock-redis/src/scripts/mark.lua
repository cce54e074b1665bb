-- Shows which leases are there, and writes behind them: whoever has this write has what is shown.
--
-- A replica has a prefix of what its master wrote. So one that acknowledges the offset of this write has
-- these leases as they are shown here, whichever server this is and whatever it was before. Answers whose
-- history it is, and of each lease what is left of it and its token, or nothing where it is not there. KEYS:
-- x of each, and a key to be written. ARGV: the id of each
local window = '0'
--state
call('SET', KEYS[#KEYS], '', 'PX', TOMB)
local answers = {call('INFO', 'replication'):match('master_replid:(%x+)')}
for i, id in ipairs(ARGV) do
  answers[i + 1] = item(function()
    at(KEYS[i], KEYS[i], id)
    local held = find(id)
    if not held or held.phase == 'k' then return {} end
    return {life_of(held), held.token}
  end)
end
return answers
