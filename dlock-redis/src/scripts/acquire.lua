-- Requests a lock. Idempotent in the id.
--
-- A repeated request (its answer was lost) finds its own hold or its own place in the queue, and answers what
-- is left of it: no second hold, no second place. A late copy of an abandoned request finds the tombstone and
-- is refused. Nothing can happen between the check and the grant: a script runs alone. A waiter is woken by a
-- push; a waiter that dies leaves the queue when its queue lease is over. KEYS: x, t. ARGV: id, ttl, owner,
-- and in one mode:limit:queue ttl (0: does not queue):priority:window:channel
local id, ttl, owner = ARGV[1], ARGV[2], ARGV[3]
-- The fast paths, for exclusive requests. They do the same as the rest and nothing more. Most of the cost of
-- a script is creating its functions, and these create none.
local call, x, e, t = redis.call, KEYS[1], KEYS[1] .. ':e', KEYS[2]
local there = ARGV[4]:byte() == 120 and call('EXISTS', x, e, t .. ':' .. id)
-- There is no holder, waiter, sharer or watcher, and the request was not abandoned.
if there == 0 then
  local clock = call('TIME')
  local token = clock[1] .. ('00000' .. clock[2]):sub(-6)
--mint
  call('SET', x, '1h' .. id .. token .. ':' .. ttl .. ':' .. owner, 'PX', ttl)
  return token
end
local mode, limit, qttl, priority, window, chan = ARGV[4]:match('^(%l):(%d+):(%d+):(%d+):(%d+):(.*)$')
-- Another request holds it exclusively, and this one is new and may queue: it must wait, whatever is in the
-- queue.
local v = there and qttl ~= '0' and call('GET', x)
if v and v:find('^1[hpk]') and v:sub(3, 26) ~= id then
  local fields = call('HMGET', e, 'h', id)
  -- Of the three keys only x and e exist, or x alone: so it was not abandoned.
  if there == (fields[1] and 2 or 1) and not fields[2] then
    local clock, life, q = call('TIME'), tonumber(qttl), x .. ':q'
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    local arrival = call('HINCRBY', e, 'a', 1)
    call('ZADD', q, string.format('%d', (10 - priority) * 281474976710656 + arrival), id)
    local entry = '1qx:0:' .. ttl .. ':0:' .. string.format('%d', now + life) .. ':' .. chan .. ':' .. owner
    if fields[1] then call('HSET', e, id, entry) else call('HSET', e, id, entry, 'h', v:sub(2, 26)) end
    local left, rank = call('PTTL', e), call('ZRANK', q, id)
    if left < life then
      left = string.format('%d', life + 1000 + life / 2)
      call('PEXPIRE', e, left)
      call('PEXPIRE', q, left)
    elseif rank == 0 then
      call('PEXPIRE', q, left)
    end
    if arrival % 8 == 0 then
      for _, other in ipairs(call('ZRANGEBYSCORE', q, '4503599627370496', '+inf', 'LIMIT', 0, 16)) do
        local gone = call('HGET', e, other)
        local ends = gone and gone:match('^1qx:0:%d+:%d+:(%d+):')
        if ends and tonumber(ends) <= now then
          call('HDEL', e, other)
          call('ZREM', q, other)
        end
      end
    end
    return {'Q', call('PTTL', x), now, rank, 0}
  end
end
--state
ttl, qttl = tonumber(ttl), tonumber(qttl)
at(KEYS[1], KEYS[2], id)
if call('EXISTS', z) == 1 then return {'A'} end
settle()
local held, w = find(id)
if held then
  if held.phase == 'k' then return {'R', finish()} end
  return granted(held)
end
if w then
  w.ends, w.chan = now + qttl, chan
  write_e(w)
  come_back(id)
  last(qttl, q)
else
  local other = mode == 's' and mismatch(limit)
  if other then
    admit()
    return {'M', other, finish()}
  end
  w = {id = id, phase = 'q', mode = mode, limit = limit, ttl = ttl, token = '0',
    ends = now + qttl, chan = chan, owner = owner}
  admit(mode == 's' and id or nil)
  if admissible(mode, limit) and call('ZCOUNT', q, '-inf', '(' .. string.format('%.0f', AWAY)) == 0 then
    join(w)
    grant(w, ttl, mint())
    return {'G', w.token, ttl, now, finish()}
  end
  if qttl == 0 then
    local more = finish()
    return {'H', recheck(), now, more}
  end
  join(w)
  queue_up(w, tonumber(priority))
  write_e(w)
  last(qttl, q)
end
if hold and not noted then note(hold.phase, hold.id) end
local given = admit(id)
local more = finish()
if given then return {'G', given.token, given.ttl, now, more} end
return {'Q', recheck(), now, call('ZRANK', q, id), more}
