-- The resource side of fencing: checks a token, and writes in the same step. KEYS: the resource, a hash with
-- the fields v (the value), x (the largest token that came with exclusive access) and a (the largest at all).
-- ARGV: token, 1 for exclusive access, 1 for a write, the value
local function less(a, b) return #a < #b or (#a == #b and a < b) end
local got = redis.call('HMGET', KEYS[1], 'x', 'a')
local exclusive = ARGV[2] == '1'
local bar = got[exclusive and 2 or 1]
if bar and less(ARGV[1], bar) then return bar end
if not got[2] or less(got[2], ARGV[1]) then redis.call('HSET', KEYS[1], 'a', ARGV[1]) end
if exclusive and (not got[1] or less(got[1], ARGV[1])) then redis.call('HSET', KEYS[1], 'x', ARGV[1]) end
if ARGV[3] == '1' then redis.call('HSET', KEYS[1], 'v', ARGV[4]) end
return false
