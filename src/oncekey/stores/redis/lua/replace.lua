#!lua flags=allow-oom
-- Writes records anew, each only if it is still the version that its writer has read. For records
-- that need more memory the same text is the script `add`, without the flag (scripts.py).
--
-- ARGV[3...]  per key six: 12 bytes fence and revision that were read, empty if there was no record;
--             the record; when a sweeper
--             should look at it; when it expires by itself, empty if it does not; 1 if it has not
--             ended, else empty; until when the old version is archived, empty if it is not
-- Reply       the time; then, for each key that was not written, its number and its record, which
--             is empty if there is none
local now = read_clock()
local reply = { clock_reply(now) }
for number = 1, keys_count do
  local key, at = KEYS[number], 6 * number - 3
  local value, archived_until = ARGV[at + 1], ARGV[at + 5]
  local current = call('GET', key)
  if sub(current or '', 4, 15) == ARGV[at] then
    local bucket, id = bucket_of(key), id_of(key)
    if archived_until ~= '' then archive(bucket, id, current, archived_until) end
    local expires = ARGV[at + 3] ~= '' and milliseconds(tonumber(ARGV[at + 3]))
    if expires then
      call('SET', key, value, 'PXAT', expires)
    else
      call('SET', key, value)
    end
    local fence = unpack_('>I8', value, 4)
    call('ZADD', bucket .. 'claims', fence, id)
    call('ZADD', bucket .. 'due', ARGV[at + 2], id)
    if ARGV[at + 4] ~= '' then
      call('ZADD', bucket .. 'open', fence, id)
    else
      call('ZREM', bucket .. 'open', id)
    end
  else
    reply[#reply + 1] = number
    reply[#reply + 1] = current or ''
  end
end
return reply
