-- Ends a lease, at once or after a minimum hold, and hands the lock to the next waiter in the same step: no
-- gap, no race, no herd.
--
-- The id names the lease: if it has ended and the lock has another holder, nothing is touched. A repeated
-- release finds nothing and says so; the client knows that it repeated it. Where a copy of the acquire may
-- still be in flight a tombstone is left; otherwise that copy would be granted with no one to hold it. KEYS:
-- x, t. ARGV: id, window, and except in ordinary releases: the minimum hold (0: none), 1 if a copy may follow
local id, window, keep = ARGV[1], ARGV[2], tonumber(ARGV[3] or '0')
if ARGV[4] == '1' then
  redis.call('DEL', KEYS[2] .. ':')
  redis.call('SET', KEYS[2] .. ':' .. id, '', 'PX', 60000)
end
-- The fast paths. They do the same as the rest and nothing more. Most of the cost of a script is creating its
-- functions, and these create none.
if keep == 0 then
  local call, x, e = redis.call, KEYS[1], KEYS[1] .. ':e'
  local v = call('GET', x)
  if v and v:sub(3, 26) == id and v:find('^1[hp]') then
    -- There is no waiter, sharer or watcher.
    if call('EXISTS', e) == 0 then
      call('DEL', x)
      return 'R'
    end
    -- The next waiter wants it exclusively, is reachable, and is told; there is no sharer, no one who wants
    -- to share, and no watcher.
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
          -- If the push reaches no one, a token is skipped and nothing else. See `publish` in state.lua.
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
