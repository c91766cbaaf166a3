#!lua flags=no-writes
-- Reads the past generations of a key.
--
-- KEYS    its archive
-- Reply   the time, then the records
local reply = { clock_reply(read_clock()) }
for number, value in ipairs(call('HVALS', KEYS[1])) do reply[number + 1] = value end
return reply
