#!lua flags=no-writes
-- Reads records for a page of a search: without steps, and with the beginning of the outcome.
--
-- ARGV[3]   how many bytes of the outcome
-- Reply     the time, then per key its record, which is empty if there is none. A freed record keeps
--           its steps, because it matters whether there are any
local GUESS = 1024
local wanted = tonumber(ARGV[3])
local reply = { clock_reply(read_clock()) }
for number = 1, keys_count do
  local key = KEYS[number]
  local value = call('GETRANGE', key, 0, GUESS - 1)
  if byte(value, 1) ~= VERSION or #value < HEAD then
    value = ''
  else
    local fingerprint, scope, label, name, note, steps = unpack_('>I2I2I2I2I4I4', value, 84)
    local steps_at = 99 + fingerprint + scope + label + name + note
    local body_at = steps_at + steps
    if byte(value, 2) ~= 0 or steps == 0 then
      if #value == GUESS and steps_at > GUESS then value = call('GETRANGE', key, 0, steps_at - 1) end
      local body = ''
      if wanted > 0 then body = call('GETRANGE', key, body_at, body_at + wanted - 1) end
      value = sub(value, 1, 95) .. '\0\0\0\0' .. sub(value, 100, steps_at) .. body
    else
      value = call('GETRANGE', key, 0, body_at + wanted - 1)
    end
  end
  reply[number + 1] = value
end
return reply
