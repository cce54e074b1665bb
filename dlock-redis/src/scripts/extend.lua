-- Extends exclusive and shared leases by the ttl that they were acquired with, as nearly all renewals do.
-- Answers 1 for each that was extended. A 0 only means that renew.lua must be run.
--
-- The ttl of a lease is stored with it, and no more than that is left of it: so none is shortened. A pushed
-- grant that is not confirmed yet becomes a full lease. Nothing is released here, so no waiter can be
-- admitted. The order of the writes: see `although_full` in state.lua. KEYS: x of each. ARGV: the ttl, then
-- the id of each
local call, pcall, ttl, answers, now = redis.call, redis.pcall, ARGV[1], {}, nil
local kept = ':' .. ttl .. ':'
for i = 1, #KEYS do
  local x, id = KEYS[i], ARGV[i + 1]
  local v = pcall('GET', x)
  answers[i] = 0
  if type(v) == 'string' then
    local at = v:find('^1[hp]') and v:sub(3, 26) == id and v:find(':', 27, true)
    if at and v:sub(at, at + #kept - 1) == kept then
      answers[i] = call('PEXPIRE', x, ttl)
      if v:sub(2, 2) == 'p' then
        call('SET', x, '1h' .. v:sub(3), 'PX', ttl)
        if call('HEXISTS', x .. ':e', 'h') == 1 then call('HSET', x .. ':e', 'h', 'h' .. id) end
      end
    end
  elseif not v then
    local e, s = x .. ':e', x .. ':s'
    local w = pcall('HGET', e, id)
    if type(w) == 'string' and w:find('^1[hp]s:%d+' .. kept) then
      if not now then
        local clock = call('TIME')
        now = clock[1] * 1000 + math.floor(clock[2] / 1000)
      end
      local ends = pcall('ZSCORE', s, id)
      if type(ends) == 'string' and tonumber(ends) > now then
        -- No entry outlives its keys.
        if call('PTTL', e) < tonumber(ttl) then
          local life = string.format('%d', ttl + 1000 + ttl / 2)
          for _, key in ipairs({e, x .. ':q', s}) do call('PEXPIRE', key, life) end
        end
        call('PEXPIRE', s, call('PTTL', e))
        call('ZADD', s, string.format('%d', now + ttl), id)
        if w:sub(2, 2) == 'p' then call('HSET', e, id, '1h' .. w:sub(3)) end
        answers[i] = 1
      end
    end
  end
end
return answers
