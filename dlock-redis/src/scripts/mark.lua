-- Shows which leases exist, and then writes: a replica that has this write has those leases.
--
-- A replica has a prefix of its master's writes. So one that acknowledges the offset of this write has the
-- leases that are shown here, whichever server this is and whatever it was before. Answers the id of the
-- replication history, and for each lease its remaining life and its token, or nothing if it is gone. KEYS: x
-- of each, and a key to be written. ARGV: the id of each
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
