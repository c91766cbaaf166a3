#!lua flags=allow-oom
-- Archives past generations that come from another store.
--
-- ARGV[3...]  per key two: the record, and until when it is archived
-- Reply       the time
for number = 1, keys_count do
  local key, at = KEYS[number], 2 * number + 1
  local value, archived_until = ARGV[at], ARGV[at + 1]
  local bucket, id, fence = bucket_of(key), id_of(key), sub(value, 4, 11)
  local past = bucket .. 'h:' .. id
  call('HSET', past, fence, value)
  call('ZADD', bucket .. 'past', archived_until, id .. fence)
  local expires = milliseconds(tonumber(archived_until))
  if expires and call('PEXPIRETIME', past) < expires then call('PEXPIREAT', past, expires) end
end
return { told(read_clock()) }
