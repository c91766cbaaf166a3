#!lua flags=allow-oom
-- Removes those of the given records that are garbage, and postpones the others.
--
-- Reply   the time, and how many were removed. What the server has removed by itself counts: its
--         index entries were still there
local now = read_clock()
local removed = 0
local floors = {}
for number = 1, keys_count do
  local key = KEYS[number]
  removed = removed + collect(bucket_of(key), id_of(key), now, floors)
end
raise_floors(floors)
return { clock_reply(now), removed }
