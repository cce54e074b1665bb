-- dlock, layout 1. Programs of several releases run these scripts side by side on the same keys: a change to
-- what is written, or to its meaning, breaks such fleets, and needs a new VERSION. A script refuses values of
-- a newer one.
local VERSION, WINDOW = '1', tonumber(window)
local call = redis.call
-- The server's time, and no other. Time stands still in a script: no key expires while it runs.
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local micros = string.format('%s%06d', clock[1], clock[2])
-- How long a message can be in flight (an abandoned request that arrives late must not be granted), and the
-- command that wakes waiters.
local TOMB, PUBLISH = '60000', 'PUBLISH'
-- How many waiters one script tries; and what is added to the place of a waiter that is away (2^52: more than
-- any place).
local TRIES, AWAY = 256, 4503599627370496
-- The state of one name, and the one admission rule that every change runs. A script selects the name with
-- `at`, does its work, and ends with `finish`.
--
-- Each name has two KEYS, x and t; the others are derived from them and are in the same slot.
-- x           string  the exclusive holder, or a minimum hold; expires by its own PX
-- x:e         hash    waiters, sharers, and a few fields of one letter; no entry outlives its PX
-- x:q         zset    waiters by place: priority, then arrival; those that no push reached come AWAY later
-- x:s         zset    sharers by the end of their lease
-- t           string  the last token of the bucket, for ever
-- t:<id>      string  tombstone: a request that was abandoned, or released after it may have been sent twice
-- The fields of e: h the exclusive holder as last seen here; o until when changes are published; b since when
-- without a gap (in microseconds); i the number of the last change (counted from b); a how many arrived; n
-- how many entries have a shared mode; c their class; u the sharer that wants to upgrade, and until when that
-- counts.
--
-- Invariants: while `x` exists `s` is empty. A member of q or s has its field in e, and e has no other field
-- of 24 bytes. Without `e` there is no waiter, sharer or watcher. c exists while n is above zero.
local x, e, q, s, t, z
-- Read once: the exclusive hold; the field h; whether changes are published; the field n.
local hold, noted, watched, sharing
-- Whether `noted` is still to be written.
local renoted
-- The longest claim window of the grants that were pushed, and whether more waiters were left to try. Each
-- answer ends with it: the client runs tend.lua when the window is over, or at once.
local pushed, unfinished

-- The first write of every script that makes more than one, except in the fast paths of acquire.lua, which
-- begin by checking a key that does not exist.
--
-- When memory is full, Redis refuses the first write of a script if that write may need memory, and no later
-- one. Scripts that release or keep a lock begin with a write that needs none. And while the slot is moving
-- to another node, access to a key that is not here is refused, even in the middle of a script, and earlier
-- writes stand. This key never exists, so such a script ends before it has changed anything.
local function although_full() call('DEL', KEYS[2] .. ':') end

-- A value that this version does not write: one of a newer version (a digit, then a letter), or of another
-- program.
local function refuse(v)
  error(v:match('^%d%l') and v:sub(1, 1) ~= VERSION and 'DLOCKVERSION' or 'DLOCKFOREIGN')
end

-- An exclusive hold: version, phase (h held, p for a claim window, k kept by a minimum hold), id, token, ttl,
-- owner.
local function read_x()
  local v = call('GET', x)
  if not v then return nil end
  if v:sub(1, 1) ~= VERSION then refuse(v) end
  local token, ttl, owner = v:match('^(%d+):(%d+):(.*)$', 27)
  if not token then refuse(v) end
  return {phase = v:sub(2, 2), id = v:sub(3, 26), token = token, ttl = tonumber(ttl), owner = owner}
end
-- With `life` as the time to live; without it the present one stays, which may be zero milliseconds and then
-- could not be set.
local function write_x(h, life)
  hold = h
  local v = VERSION .. h.phase .. h.id .. h.token .. ':' .. string.format('%d', h.ttl) .. ':' .. h.owner
  if life then call('SET', x, v, 'PX', string.format('%d', life)) else call('SET', x, v, 'KEEPTTL') end
end
local function note(phase, id, chan) noted, renoted = phase .. id .. (chan or ''), true end
local function forget_note() noted, renoted = false, true end
local function clear_x()
  hold = nil
  call('DEL', x)
  forget_note()
end

local function at(key, counter, id)
  x, t = key, counter
  e, q, s, z = x .. ':e', x .. ':q', x .. ':s', t .. ':' .. id
  renoted, pushed, unfinished = false, 0, false
  hold = read_x()
  local fields = call('HMGET', e, 'h', 'o', 'n')
  noted, watched, sharing = fields[1], fields[2] and tonumber(fields[2]) > now, tonumber(fields[3] or '0')
end

-- An entry of e: version, phase (q queued, h, p, k), mode (x or s), limit, ttl, token, end of the queue
-- lease, channel, owner.
local function read_e(id)
  local v = call('HGET', e, id)
  if not v then return nil end
  if v:sub(1, 1) ~= VERSION then refuse(v) end
  local phase, mode, limit, ttl, token, ends, chan, owner =
    v:match('^%d(%l)(%l):(%d+):(%d+):(%d+):(%d+):([^:]*):(.*)$')
  if not phase then refuse(v) end
  return {id = id, phase = phase, mode = mode, limit = limit, ttl = tonumber(ttl), token = token,
    ends = tonumber(ends), chan = chan, owner = owner, written = true}
end
local function write_e(w)
  call('HSET', e, w.id, table.concat({VERSION .. w.phase .. w.mode, w.limit,
    string.format('%d', w.ttl), w.token, string.format('%d', w.ends), w.chan, w.owner}, ':'))
end
-- No entry outlives its keys. The key that an entry was added to may be new.
local function last(life, key)
  local left = call('PTTL', e)
  if left < life then
    left = string.format('%d', life + 1000 + life / 2)
    call('PEXPIRE', e, left)
    call('PEXPIRE', q, left)
    call('PEXPIRE', s, left)
  else
    call('PEXPIRE', key, left)
  end
end
local function count(by)
  sharing = call('HINCRBY', e, 'n', by)
  if sharing <= 0 then call('HDEL', e, 'n', 'c') end
end

-- A message is for the listeners of this server only. A replica would pass it to its own: clients that
-- connected when it was a master, which would take a turn that this server then gives to another. Replication
-- is switched on again for the later writes, whatever became of the message.
local function publish(channel, message)
  redis.set_repl(redis.REPL_NONE)
  local heard = redis.pcall(PUBLISH, channel, message)
  redis.set_repl(redis.REPL_ALL)
  if type(heard) == 'table' then error(heard.err, 0) end
  return heard
end

-- Tells the watchers. A gap in the numbers shows them that they missed a change.
local function tell(what, id, rest)
  if not watched then return end
  local number = call('HINCRBY', e, 'i', 1)
  if publish(x, string.format('%d', number) .. what .. id .. (rest or '')) == 0 then
    watched = false
    call('HDEL', e, 'o')
  end
end

local function forget(w)
  call('HDEL', e, w.id)
  call('ZREM', w.phase == 'q' and q or s, w.id)
  if w.mode == 's' then count(-1) end
end
-- Ends a hold, and tells the watchers how.
local function let_go(held, what)
  if held == hold then clear_x() else forget(held) end
  tell(what, held.id)
end

-- A waiter that no push reaches loses its turn and keeps its place, to which it returns when it asks again.
-- So a dead waiter is tried once.
local function is_away(place) return place >= AWAY end
local function come_back(id)
  local place = tonumber(call('ZSCORE', q, id))
  if place and is_away(place) then call('ZADD', q, place - AWAY, id) end
end
-- A client that did not claim a grant is paused or cut off, so it would not claim its other grants either.
local function all_away(chan)
  local waiting = call('ZRANGE', q, 0, 999, 'WITHSCORES')
  for i = 1, #waiting, 2 do
    local place = tonumber(waiting[i + 1])
    if is_away(place) then break end
    local w = read_e(waiting[i])
    if w and w.chan == chan then call('ZADD', q, place + AWAY, w.id) end
  end
end

-- Removes what has expired. Every change begins with it: no operation may meet an expired entry.
local function settle()
  if noted and not hold then
    local phase, id, chan = noted:sub(1, 1), noted:sub(2, 25), noted:sub(26)
    forget_note()
    if phase == 'p' then all_away(chan) end
    -- The phase tells an expired lease from a minimum hold, whose holder had released it.
    tell(phase == 'k' and 'R' or 'X', id)
  end
  if sharing == 0 then return end
  for _, id in ipairs(call('ZRANGEBYSCORE', s, '-inf', now)) do
    local w = read_e(id)
    if w then
      forget(w)
      if w.phase == 'p' then all_away(w.chan) end
      tell(w.phase == 'k' and 'R' or 'X', id)
    else
      call('ZREM', s, id)
    end
  end
end

local function mint()
  local token = micros
--mint
  return token
end

local function admissible(mode, limit)
  if hold then return false end
  local shared = sharing > 0 and call('ZCARD', s) or 0
  if mode == 'x' then return shared == 0 end
  return limit == '0' or shared < tonumber(limit)
end

-- Makes a waiter a holder. One that is not the caller gets `life`, and must confirm the grant within it.
local function grant(w, life, token)
  if w.phase == 'q' and w.written then call('ZREM', q, w.id) end
  w.phase = life < w.ttl and 'p' or 'h'
  w.token = token
  if w.mode == 'x' then
    if w.written then call('HDEL', e, w.id) end
    write_x(w, life)
    note(w.phase, w.id, w.chan)
  else
    call('ZADD', s, now + life, w.id)
    write_e(w)
    last(life, s)
  end
  tell('G', w.id, table.concat({w.mode, w.limit, token, string.format('%d', life), w.owner}, ':'))
end

-- Admits from the head of the queue while the head is admissible. `asker` is the caller and gets its full
-- ttl; all others get a push and a claim window. A waiter that no push reaches is away from now on.
local function admit(asker)
  local tried, given = 0, nil
  while not hold do
    local head = call('ZRANGE', q, 0, 0, 'WITHSCORES')
    local id, place = head[1], tonumber(head[2])
    local w = id and read_e(id)
    if not id then break end
    if not w then
      call('ZREM', q, id)
    elseif w.ends <= now and id ~= asker then
      forget(w)
    elseif is_away(place) then
      break
    elseif not admissible(w.mode, w.limit) then
      -- A waiter for an exclusive lock keeps new sharers out, if it is reachable.
      if not asker or asker == id or tried >= TRIES or publish(w.chan, id .. '?') > 0 then break end
      tried = tried + 1
      call('ZADD', q, place + AWAY, id)
    elseif id == asker then
      grant(w, w.ttl, mint())
      given = w
    elseif tried >= TRIES then
      unfinished = true
      break
    else
      tried = tried + 1
      local life = math.min(w.ttl, WINDOW)
      local token = mint()
      local began, ends = string.format('%d', now), string.format('%d', now + life)
      local message = table.concat({id .. token, began, ends}, ':')
      if publish(w.chan, message) == 0 then
        call('ZADD', q, place + AWAY, id)
      else
        pushed = math.max(pushed, life)
        grant(w, life, token)
      end
    end
  end
  return given
end

-- Makes the next waiter ask again: the hold in front of it ends sooner than it knew.
local function hint()
  local id = call('ZRANGE', q, 0, 0)[1]
  local w = id and read_e(id)
  if w then publish(w.chan, id) end
end

-- Writes what is pending. Without a waiter, sharer or watcher e is deleted, and the next acquire takes the
-- fast path. Returns the end of the answer.
local function finish()
  if sharing <= 0 and not watched and call('ZCARD', q) == 0 then
    call('DEL', e)
  elseif renoted then
    if noted then call('HSET', e, 'h', noted) else call('HDEL', e, 'h') end
  end
  return unfinished and -1 or pushed
end

-- Gives a request its place in the queue. A name does not see 2^48 arrivals while it is in use.
local function queue_up(w, priority)
  local arrival = call('HINCRBY', e, 'a', 1)
  call('ZADD', q, string.format('%.0f', (10 - priority) * 281474976710656 + arrival), w.id)
  if arrival % 8 == 0 then
    -- Removes some waiters that are away and have expired. More are removed than come, so they do not pile
    -- up.
    for _, id in ipairs(call('ZRANGEBYSCORE', q, AWAY, '+inf', 'LIMIT', 0, 16)) do
      local gone = read_e(id)
      if gone and gone.ends <= now then forget(gone) end
    end
  end
end

-- Counts an entry of a shared mode.
local function join(w)
  if w.mode ~= 's' then return end
  call('HSET', e, 'c', w.limit)
  count(1)
end

-- Removes waiters that expired unnoticed. Only requests that wait for them to go pay for it.
local function sweep()
  for _, id in ipairs(call('ZRANGE', q, 0, 999)) do
    local w = read_e(id)
    if w and w.ends <= now then forget(w) end
  end
end

-- Readers, or permits of n: all users of a name must agree. The class in use, if it is another one.
local function mismatch(limit)
  local class = call('HGET', e, 'c')
  if not class or class == limit then return nil end
  sweep()
  class = call('HGET', e, 'c')
  return class and class ~= limit and class or nil
end

-- When the first hold in the way expires.
local function recheck()
  if hold then return call('PTTL', x) end
  local first = sharing > 0 and call('ZRANGE', s, 0, 0, 'WITHSCORES')[2]
  return first and tonumber(first) - now or -1
end

-- An item of a batch fails alone. A replica fails all of them: the script has its first write before them.
-- What `pcall` of a server answers is a text, whatever its functions raise.
local function item(work)
  local ok, answer = pcall(work)
  return ok and answer or {'E', tostring(answer)}
end

-- The hold of that id, exclusive or shared, or nothing; and its entry in the queue.
local function find(id)
  if hold and hold.id == id then return hold, nil end
  local w = read_e(id)
  if w and w.phase ~= 'q' then return w, nil end
  return nil, w
end
local function life_of(held)
  if held == hold then return call('PTTL', x) end
  return tonumber(call('ZSCORE', s, held.id)) - now
end

-- Extends a hold, and never shortens it. The stored ttl becomes its life, which extend.lua relies on.
local function prolong(held, ttl)
  local life = math.max(ttl, life_of(held))
  held.phase, held.ttl = 'h', life
  if held == hold then
    write_x(held, life)
    if noted then note('h', held.id) end
  else
    write_e(held)
    call('ZADD', s, now + life, held.id)
    last(life, s)
  end
  return life
end

-- Answers a request that already has a grant, which it claims by asking.
local function granted(held)
  local life = held.phase == 'p' and prolong(held, held.ttl) or life_of(held)
  return {'G', held.token, life, now, finish()}
end
