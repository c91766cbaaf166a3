#!lua flags=allow-oom
-- Ends the claims that their owners still hold, and returns the records of the others.
--
-- ARGV[3...]  per key two: 1 byte state (succeeded or failed), 8 fence, 16 owner; and the outcome
-- Reply       the time; then, for each key that was not ended, its number and its record, which is
--             empty if there is none
local now = read_clock()
local stamp = pack('>I8', now)
local reply = { clock_reply(now) }
for number = 1, keys_count do
  local key, command = KEYS[number], ARGV[2 * number + 1]
  local value = call('GET', key)
  if value and byte(value, 2) == 1 and sub(value, 4, 11) == sub(command, 2, 9)
    and sub(value, 68, 83) == sub(command, 10, 25) then
    local revision = (unpack_('>I4', value, 12) + 1) % 4294967296
    local keep, audit = unpack_('>I8I8', value, 44)
    -- A pending record has no outcome yet, so the outcome is what comes last.
    local ended = sub(value, 1, 1) .. sub(command, 1, 1) .. sub(value, 3, 11)
      .. pack('>I4', revision) .. sub(value, 16, 35) .. stamp .. sub(value, 44) .. ARGV[2 * number + 2]
    local expires = milliseconds(now + keep + audit)
    if expires then
      call('SET', key, ended, 'PXAT', expires)
    else
      call('SET', key, ended)
    end
    call('ZREM', bucket_of(key) .. 'open', id_of(key))
  else
    reply[#reply + 1] = number
    reply[#reply + 1] = value or ''
  end
end
return reply
