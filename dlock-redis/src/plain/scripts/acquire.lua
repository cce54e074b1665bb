-- `SET key id NX PX ttl`, as every client of the plain recipe does it; idempotent in the id.
--
-- Sent again (its answer was lost) it finds its own id, and answers what is left. Arrived late, after it was
-- abandoned, it finds the tombstone and is refused. Whatever else is there is somebody's lock, with an end or
-- without one. Programs of several releases, and of other authors, run on the same keys: the value is the id
-- and nothing else, for ever. KEYS: the lock, the tombstone of this request. ARGV: id, ttl
local key, id, ttl = KEYS[1], ARGV[1], ARGV[2]
if redis.call('EXISTS', KEYS[2]) == 1 then return {'A', 0} end
if redis.call('SET', key, id, 'NX', 'PX', ttl) then return {'G', tonumber(ttl)} end
-- Another type than text is an error: that is no lock, and an operator should know.
if redis.call('GET', key) ~= id then return {'H', redis.call('PTTL', key)} end
-- Somebody took the expiry from it.
if redis.call('PTTL', key) < 0 then redis.call('PEXPIRE', key, ttl) end
return {'G', redis.call('PTTL', key)}
