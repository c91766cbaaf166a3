-- Moves dead letters, or parked messages, back into the stream, the oldest first.
-- KEYS: stream, where they stand. ARGV: most, how many words an entry may have that is added here,
-- the id of one that is in the stream already ('' if none), after which id to go on ('-': from the
-- first), the last id to move ('': the last one that is there now), the name of a field that is left
-- out ('' if none), the name of a field that only notes have, which are not moved, then fields to add.
-- Returns how many were moved; the id and the fields of the next one if that has too many words, ''
-- and nothing if not: then the caller adds it to the stream, and says so in its next call; the id
-- after which to go on ('' if that was all), and the last id to move.
if ARGV[3] ~= '' then redis.call('XDEL', KEYS[2], ARGV[3]) end
local most, words_max, moved = tonumber(ARGV[1]), tonumber(ARGV[2]), 0
local after, last, left_out, note = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if last == '' then
  local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  if newest == nil then return {0, '', {}, '', ''} end
  last = newest[1]
end
local from = after == '-' and '-' or '(' .. after
local letters = most > 0 and redis.call('XRANGE', KEYS[2], from, last, 'COUNT', most) or {}
for _, entry in ipairs(letters) do
  local fields, is_note = {}, false
  for i = 1, #entry[2], 2 do
    local name, value = entry[2][i], entry[2][i + 1]
    if string.lower(name) == note then is_note = true end
    if string.lower(name) ~= left_out then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  if not is_note then
    if #fields + #ARGV - 7 > words_max then return {moved, entry[1], fields, after, last} end
    for i = 8, #ARGV do fields[#fields + 1] = ARGV[i] end
    redis.call('XADD', KEYS[1], '*', unpack(fields))
    redis.call('XDEL', KEYS[2], entry[1])
    moved = moved + 1
  end
  after = entry[1]
end
if #letters < most then after = '' end
return {moved, '', {}, after, last}
