#!lua
-- Archives past generations that come from another store.
--
-- ARGV[3...]  per key two: the record; until when it is archived
-- Reply       the time
for number = 1, keys_count do
  local key, value, archived_until = KEYS[number], ARGV[2 * number + 1], ARGV[2 * number + 2]
  archive(bucket_of(key), id_of(key), value, archived_until)
end
return { clock_reply(read_clock()) }
