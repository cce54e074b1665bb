-- Compare and delete: a lock that is somebody else's by now is not touched. Where a copy of the acquire may
-- still be on its way a tombstone is left, or it would be granted to nobody. KEYS: the lock, the tombstone.
-- ARGV: id, whether a tombstone is left
if ARGV[2] == '1' then redis.call('SET', KEYS[2], '', 'PX', 60000) end
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
