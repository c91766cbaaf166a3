-- Moves dead letters back into the stream, the oldest first.
-- KEYS: stream, dead letters. ARGV: most, the name of the redrive's field, its id.
-- Returns how many were moved.
local moved = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', ARGV[1])
for _, entry in ipairs(moved) do
  local fields = entry[2]
  fields[#fields + 1] = ARGV[2]
  fields[#fields + 1] = ARGV[3]
  redis.call('XADD', KEYS[1], '*', unpack(fields))
  redis.call('XDEL', KEYS[2], entry[1])
end
return #moved
