-- Gives back what a consumer still holds, and removes the consumer.
-- KEYS: stream, due times. ARGV: group, consumer, the name under which entries wait.
local group, consumer, waiting = ARGV[1], ARGV[2], ARGV[3]
local now = now_ms()
local start, left = '-', 0
while true do
  local pending = redis.call('XPENDING', KEYS[1], group, start, '+', 100, consumer)
  for _, item in ipairs(pending) do
    redis.call('ZADD', KEYS[2], now, item[1])
    if fields_of(item[1]) then
      redis.call('XCLAIM', KEYS[1], group, waiting, 0, item[1], 'JUSTID')
    else
      left = left + 1  -- whoever takes it notes that it is gone
    end
  end
  if #pending < 100 then break end
  start = '(' .. pending[100][1]
end
-- Removing a consumer removes its pending entries, so it must have none.
if left == 0 then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], group, consumer) end
return left
