-- A token: at least `token`, which is the time, and larger than the last one. So it grows even if the last
-- one was lost, as long as the clock grows.
local old = call('SET', t, token, 'GET')
if old and (#old > #token or (#old == #token and old >= token)) then
  call('SET', t, old)
  call('INCR', t)
  token = call('GET', t)
end
