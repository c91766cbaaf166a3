#!lua flags=allow-oom
-- Forgets a replica, because an operator says that it is gone.
--
-- KEYS      the hash of the replicas
-- ARGV[3]   the replica's field
-- ARGV[4]   when it was seen last: if it was seen since, nothing is done
-- ARGV[5]   the field that says who forgot it, when and why
-- ARGV[6]   the value of that field
-- Reply     the time, and 1 if it was done, else 0
local old = call('HMGET', KEYS[1], ARGV[3])[1]
if not old or string.match(old, '^%d+ (%d+) ') ~= ARGV[4] then return { clock_reply(read_clock()), 0 } end
call('HDEL', KEYS[1], ARGV[3])
call('HSET', KEYS[1], ARGV[5], ARGV[6])
return { clock_reply(read_clock()), 1 }
