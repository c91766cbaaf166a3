-- What all scripts share. The loader puts this behind the first line of each of them.
--
-- KEYS holds the keys of records first, ARGV[2] of them. On a cluster the index keys of the same
-- slot follow, which a script finds by itself: they are listed so that the server refuses the call
-- while the slot is being moved to another node.
-- ARGV[1] is empty, or the time on the clock of a test.
--
-- The value of a record is that of stores/record_format.py. Its first bytes, counted from 1:
--   1 version · 2 state · 3 retry_safe · 4-11 fence · 12-15 revision · 16-19 attempt ·
--   20-27 created_at · 28-35 lease_until · 36-43 finished_at · 44-51 keep · 52-59 audit ·
--   60-67 keep_unknown · 68-83 owner · 84-99 the lengths of what follows
local VERSION, HEAD = 1, 99
local call, sub, byte, pack, unpack_ = redis.call, string.sub, string.byte, struct.pack, struct.unpack

-- Times are microseconds since 1970, which a double holds exactly until the year 2255.
local function read_clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The time as a reply has it. A test may move its clock further than a double is exact.
local function clock_reply(now)
  if ARGV[1] ~= '' then return ARGV[1] end
  return now
end

-- The keys of a test's clock never expire by the server's own.
local function milliseconds(at)
  if ARGV[1] ~= '' then return nil end
  return math.ceil(at / 1000)
end

-- A record's key is the beginning of all keys of its bucket, "r:" and its id of 16 bytes.
local function bucket_of(key) return sub(key, 1, -19) end
local function id_of(key) return sub(key, -16) end

-- Puts a generation of a key into its archive.
local function archive(bucket, id, value, archived_until)
  local past, fence = bucket .. 'h:' .. id, sub(value, 4, 11)
  call('HSET', past, fence, value)
  call('ZADD', bucket .. 'past', archived_until, id .. fence)
  local expires = milliseconds(tonumber(archived_until))
  if expires and call('PEXPIRETIME', past) < expires then call('PEXPIREAT', past, expires) end
end

local keys_count = tonumber(ARGV[2])
