-- Holds entries for longer. Their idle time begins anew as well, so that consumers which know
-- nothing of due times, and ask by XAUTOCLAIM, leave them alone too.
-- KEYS: stream, due times. ARGV: group, consumer, milliseconds, then id and deliveries of each.
-- Returns the ids of those that were trimmed from the stream.
local group, consumer = ARGV[1], ARGV[2]
local held_until = now_ms() + tonumber(ARGV[3])
local gone = {}
for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local pending = pending_of(group, id)
  if pending and pending.consumer == consumer and pending.deliveries == tonumber(ARGV[i + 1]) then
    redis.call('ZADD', KEYS[2], held_until, id)
    if fields_of(id) then
      redis.call('XCLAIM', KEYS[1], group, consumer, 0, id, 'JUSTID')
    else
      gone[#gone + 1] = id  -- XCLAIM would forget that it is pending
    end
  end
end
return gone
