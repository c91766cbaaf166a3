#!lua flags=allow-oom
-- Remembers the check value of the first secret.
--
-- KEYS      the key of the check value
-- ARGV[3]   the check value of this secret
-- Reply     the time, and the check value that is remembered
call('SET', KEYS[1], ARGV[3], 'NX')
return { clock_reply(read_clock()), call('GET', KEYS[1]) }
