-- Grants what the first fast path of acquire.lua would, if all of the names are unused: the keys and the
-- clock are read once for all. All get one token, the clock's. So the second name of a bucket is left to the
-- rest, and so are names of a bucket without a token, or with one that is ahead of the clock.
if fourth:byte() == 120 then
  local keys, counters, rows, seen, n = {}, {}, {}, {}, 0
  for i = 1, #KEYS / 2 do
    local x, t = KEYS[2 * i - 1], KEYS[2 * i]
    if not seen[t] then
      n, seen[t] = n + 1, true
      rows[n], counters[n] = i, t
      keys[3 * n - 2], keys[3 * n - 1], keys[3 * n] = x, x .. ':e', t .. ':' .. ARGV[i + 3]
    end
  end
  if call('EXISTS', unpack(keys)) == 0 then
    local clock, raised, m = call('TIME'), {}, 0
    local token = clock[1] .. ('00000' .. clock[2]):sub(-6)
    local ends = string.format('%d', clock[1] * 1000 + math.floor(clock[2] / 1000) + second)
    local rest, last = token .. ':' .. second .. ':' .. third, call('MGET', unpack(counters))
    for k = 1, n do
      local old = last[k]
      if old and (#old < #token or (#old == #token and old < token)) then
        raised[m + 1], raised[m + 2], m = counters[k], token, m + 2
        answers[rows[k]] = token
      end
    end
    if m > 0 then call('MSET', unpack(raised)) end
    for k = 1, n do
      local i = rows[k]
      if answers[i] then call('SET', KEYS[2 * i - 1], '1h' .. ARGV[i + 3] .. rest, 'PXAT', ends) end
    end
  end
end
