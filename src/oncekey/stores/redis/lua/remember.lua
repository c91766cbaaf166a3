#!lua flags=allow-oom
-- Writes down which replicas are seen.
--
-- KEYS       the hash of the replicas
-- ARGV[3..]  for each replica its field, and what is known of it
-- Reply      the time
--
-- A value is the time of the first sighting, that of the last one, and what is known.
local now = read_clock()
local last = string.format('%.0f', now)
for at = 3, #ARGV, 2 do
  local old = call('HMGET', KEYS[1], ARGV[at])[1]
  local first = old and string.match(old, '^(%d+) ') or last
  call('HSET', KEYS[1], ARGV[at], first .. ' ' .. last .. ' ' .. ARGV[at + 1])
end
return { clock_reply(now) }
