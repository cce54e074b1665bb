-- dlock, layout 1. Programs of several releases run these scripts side by side on the same keys: a change to
-- what is written, or to what it means, breaks such fleets, and takes another VERSION. Who meets a newer one
-- refuses.
local VERSION, WINDOW = '1', tonumber(window)
local call = redis.call
-- The server's time and no other. A script sees one moment: no key runs out while it runs.
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local micros = string.format('%s%06d', clock[1], clock[2])
-- For how long a message can be under way (an abandoned request must not be granted when it arrives late),
-- and how to tell who waits.
local TOMB, PUBLISH = '60000', 'PUBLISH'
-- How many waiters are tried in one script; and what is added to the place of one that is away (2^52: more
-- than any place).
local TRIES, AWAY = 256, 4503599627370496
