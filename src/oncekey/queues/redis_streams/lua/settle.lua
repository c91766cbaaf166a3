-- Does what was decided about entries. What is taken out is taken out last, so that an error in the
-- middle loses nothing.
-- KEYS: stream, due times, dead letters, parked. ARGV: group, consumer, '1' to delete what is done,
-- the name under which entries wait; how many entries are to be removed, and their ids; then for each
-- other entry what to do, its id, its deliveries, milliseconds, how many words its fields have, and
-- these words. What to do is 'later' (after those milliseconds), 'dead' or 'park'. An entry that is
-- too large to be added by a script comes without its words.
-- Returns the ids of those that had to be added again, because they had been trimmed.
local group, consumer, deletes, waiting = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local now = now_ms()
local done, again = {}, {}

-- Only the latest delivery may settle an entry; that of a paused consumer changes nothing.
local function is_ours(id, deliveries)
  local pending = pending_of(group, id)
  return pending and pending.consumer == consumer and pending.deliveries == deliveries
end

local function postpone(id, milliseconds, fields)
  if fields_of(id) then
    redis.call('ZADD', KEYS[2], now + milliseconds, id)
    redis.call('XCLAIM', KEYS[1], group, waiting, 0, id, 'JUSTID')
  elseif #fields == 0 then
    redis.call('ZADD', KEYS[2], now, id)  -- whoever takes it notes that it is gone
  else
    redis.call('XADD', KEYS[1], '*', unpack(fields))
    again[#again + 1] = id
    done[#done + 1] = id
  end
end

-- The outcome of these is stored, so whoever has them now would only find that out.
local removed = tonumber(ARGV[5])
for n = 1, removed do done[n] = ARGV[5 + n] end

local i = 6 + removed
while i <= #ARGV do
  local action, id, words = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 4])
  if is_ours(id, tonumber(ARGV[i + 2])) then
    local fields = {}
    for n = 1, words do fields[n] = ARGV[i + 4 + n] end
    if action == 'later' then
      postpone(id, tonumber(ARGV[i + 3]), fields)
    else
      redis.call('XADD', action == 'dead' and KEYS[3] or KEYS[4], '*', unpack(fields))
      done[#done + 1] = id
    end
  end
  i = i + 5 + words
end
if #done > 0 then
  redis.call('XACK', KEYS[1], group, unpack(done))
  redis.call('ZREM', KEYS[2], unpack(done))
  if deletes then redis.call('XDEL', KEYS[1], unpack(done)) end
end
return again
