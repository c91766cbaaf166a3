#!lua flags=allow-oom
-- Removes past generations whose audit has ended.
--
-- KEYS        the archives of keys
-- ARGV[3...]  per key: the fence of the generation, 8 bytes
-- Reply       the time, and how many were removed
local removed = 0
for number = 1, keys_count do
  local key, fence = KEYS[number], ARGV[number + 2]
  call('HDEL', key, fence)
  removed = removed + call('ZREM', bucket_of(key) .. 'past', id_of(key) .. fence)
end
return { clock_reply(read_clock()), removed }
