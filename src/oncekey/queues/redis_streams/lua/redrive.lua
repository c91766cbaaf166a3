-- Moves dead letters back into the stream, the oldest first.
-- KEYS: stream, dead letters. ARGV: most, the name of the redrive's field, its id, how many words an
-- entry may have that is added here, the id of a letter that is in the stream already ('' if none).
-- Returns how many were moved, and the id and the fields of the next one if that has too many words
-- ('' and nothing if not): then the caller adds it to the stream, and says so in its next call.
if ARGV[5] ~= '' then redis.call('XDEL', KEYS[2], ARGV[5]) end
local most, words_max, moved = tonumber(ARGV[1]), tonumber(ARGV[4]), 0
local letters = most > 0 and redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', most) or {}
for _, entry in ipairs(letters) do
  local fields = entry[2]
  if #fields + 2 > words_max then return {moved, entry[1], fields} end
  fields[#fields + 1] = ARGV[2]
  fields[#fields + 1] = ARGV[3]
  redis.call('XADD', KEYS[1], '*', unpack(fields))
  redis.call('XDEL', KEYS[2], entry[1])
  moved = moved + 1
end
return {moved, '', {}}
