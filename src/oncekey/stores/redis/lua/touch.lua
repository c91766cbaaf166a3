#!lua flags=allow-oom
-- Writes something, so that WAITAOF on the same connection has something to wait for.
--
-- KEYS      a key of its own, which expires
-- ARGV[3]   after how many milliseconds
-- Reply     the time
call('SET', KEYS[1], '', 'PX', ARGV[3])
return { clock_reply(read_clock()) }
