#!lua flags=no-writes
-- Reads records whole.
--
-- Reply   the time, then per key its record; if there is none, the highest fence that it may have had
local reply = { clock_reply(read_clock()) }
for number = 1, keys_count do
  local key = KEYS[number]
  local value = call('GET', key)
  if not value then
    local bucket = bucket_of(key)
    local floor = tonumber(call('GET', bucket .. 'floor') or 0)
    value = math.max(floor, tonumber(call('ZSCORE', bucket .. 'claims', id_of(key)) or 0))
  end
  reply[number + 1] = value
end
return reply
