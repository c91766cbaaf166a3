-- Shared by all scripts. KEYS[1] is the stream; KEYS[2] the sorted set of due times: for each pending
-- entry the moment, in milliseconds of the server's clock, from which any consumer may take it.

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- The pending entry of an id as {consumer, idle, deliveries}; nil if it is not pending.
local function pending_of(group, id)
  local found = redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
  if not found then return nil end
  return {consumer = found[2], idle = found[3], deliveries = found[4]}
end

-- The fields of an entry; nil if it was trimmed or deleted.
local function fields_of(id)
  local found = redis.call('XRANGE', KEYS[1], id, id)[1]
  return found and found[2]
end

-- A stream that was deleted took its marker with it, and one of the same name is another stream.
local function check_identity(marker)
  if marker ~= '' then redis.call('XPENDING', KEYS[1], marker) end
end

-- A reply of XINFO is a flat list of names and values.
local function named(list)
  local values = {}
  for i = 1, #list, 2 do values[list[i]] = list[i + 1] end
  return values
end

-- True if the first id is the lower one. Numbers of Lua would not be exact.
local function is_lower(one, other)
  local ms, seq = string.match(one, '^(%d+)-(%d+)$')
  local other_ms, other_seq = string.match(other, '^(%d+)-(%d+)$')
  local function lower(a, b) return #a < #b or (#a == #b and a < b) end
  if ms ~= other_ms then return lower(ms, other_ms) end
  return lower(seq, other_seq)
end
