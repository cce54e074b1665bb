-- Ends what the first fast path of release.lua would, if none of the names has a waiter, sharer or watcher.
if third == '0' and fourth == '0' then
  local names, ours, entries, seen, n, byte, find = {}, {}, {}, {}, 0, string.byte, string.find
  for i = 1, #KEYS / 2 do names[i] = KEYS[2 * i - 1] end
  local held = call('MGET', unpack(names))
  for i = 1, #names do
    local x, v = names[i], held[i]
    if v and not seen[x] and find(v, ARGV[i + 3], 3, true) == 3 then
      local version, phase = byte(v, 1, 2)
      if version == 49 and (phase == 104 or phase == 112) then
        n = n + 1
        ours[n], entries[n], answers[i] = x, x .. ':e', 'R'
      end
    end
    seen[x] = true
  end
  if n > 0 then
    if call('EXISTS', unpack(entries)) == 0 then call('DEL', unpack(ours)) else answers = {} end
  end
end
