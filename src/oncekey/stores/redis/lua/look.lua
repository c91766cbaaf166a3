#!lua flags=no-writes
-- Reads records whole.
--
-- Reply   the time, then per key its record, which is empty if there is none
local reply = { told(read_clock()) }
for number = 1, keys_count do
  reply[number + 1] = call('GET', KEYS[number]) or ''
end
return reply
