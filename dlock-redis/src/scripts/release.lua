-- Ends a lease, at once or after a minimum hold, and hands the name to whoever is next in the same step: no
-- gap, no race, no herd.
--
-- By its id: a lease that is over and given to another is not touched. Sent again it finds nothing and says
-- so; the client knows that it had sent it before. Where a copy of the acquire may still be on its way a
-- tombstone is left, or it would be granted to nobody. KEYS: x, t. ARGV: id, window, and where it is not an
-- ordinary one: how long it is kept (0: not at all), whether it may come again
local id, window, keep = ARGV[1], ARGV[2], tonumber(ARGV[3] or '0')
if ARGV[4] == '1' then
  redis.call('DEL', KEYS[2] .. ':')
  redis.call('SET', KEYS[2] .. ':' .. id, '', 'PX', 60000)
end
-- The short ways. They do what the rest would do and no more: most of what a script costs are the functions
-- that it makes, and these make none.
if keep == 0 then
  local call, x, e = redis.call, KEYS[1], KEYS[1] .. ':e'
  local v = call('GET', x)
  if v and v:sub(3, 26) == id and v:find('^1[hp]') then
    -- Nobody waits, shares or watches.
    if call('EXISTS', e) == 0 then
      call('DEL', x)
      return 'R'
    end
    -- Who is next waits to have it alone, is there, and hears of it; nobody shares or wants to, nobody
    -- watches.
    local q = x .. ':q'
    local first = call('ZRANGEBYSCORE', q, '-inf', '(4503599627370496', 'LIMIT', '0', '2')
    local head = first[1]
    if head then
      local fields = call('HMGET', e, 'o', 'n', head)
      local ttl, ends, chan, owner = (fields[3] or ''):match('^1qx:0:(%d+):%d+:(%d+):([^:]*):(.*)$')
      if ttl and not fields[1] and not fields[2] then
        local clock, t = call('TIME'), KEYS[2]
        local micros = ('00000' .. clock[2]):sub(-6)
        local token, now = clock[1] .. micros, clock[1] .. micros:sub(1, 3)
        if tonumber(ends) > tonumber(now) then
          -- See `although_full` in state.lua.
          call('DEL', t .. ':')
--mint
          local life = math.min(tonumber(ttl), tonumber(window))
          local message = head .. token .. ':' .. now .. ':' .. string.format('%d', now + life)
          -- A token that nobody hears of is missing, and nothing else.
          -- See `publish` in state.lua.
          redis.set_repl(redis.REPL_NONE)
          local heard = call('PUBLISH', chan, message)
          redis.set_repl(redis.REPL_ALL)
          if heard > 0 then
            local phase = life < tonumber(ttl) and 'p' or 'h'
            local held = '1' .. phase .. head .. token .. ':' .. ttl .. ':' .. owner
            call('SET', x, held, 'PX', string.format('%d', life))
            call('ZREM', q, head)
            if first[2] or call('ZCARD', q) > 0 then
              call('HDEL', e, head)
              call('HSET', e, 'h', phase .. head .. chan)
            else
              call('DEL', e)
            end
            return {'R', life}
          end
        end
      end
    end
  end
end
--state
at(KEYS[1], KEYS[2], id)
although_full()
settle()
local held = find(id)
if held and held.phase ~= 'k' then
  if keep == 0 then
    let_go(held, 'R')
  else
    held.phase = 'k'
    if held == hold then
      write_x(held, keep)
      note('k', id)
    else
      write_e(held)
      call('ZADD', s, now + keep, id)
      last(keep, s)
    end
    hint()
  end
end
admit()
return {held and 'R' or 'N', finish()}
