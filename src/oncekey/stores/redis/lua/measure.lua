#!lua flags=no-writes
-- Measures buckets, without reading what grows with them.
--
-- KEYS      the sorted sets of claims
-- ARGV[3]   how far back claims are counted
-- Reply     the time; how many records there are, how many are due, the earliest time among these
--           or 0, how many claims were made lately; how many records were sampled, and their bytes
local now = read_clock()
local records, due, oldest, claims, sampled, bytes = 0, 0, 0, 0, 0, 0
for number = 1, keys_count do
  local key = KEYS[number]
  local bucket = sub(key, 1, -7)
  records = records + call('ZCARD', key)
  due = due + call('ZCOUNT', bucket .. 'due', '-inf', now)
  local first = tonumber(call('ZRANGE', bucket .. 'due', 0, 0, 'WITHSCORES')[2])
  if first and first <= now and (oldest == 0 or first < oldest) then oldest = first end
  claims = claims + call('ZCOUNT', key, '(' .. string.format('%.0f', now - ARGV[3]), '+inf')
  local newest = call('ZRANGE', key, -1, -1)[1]
  if newest then
    sampled = sampled + 1
    bytes = bytes + call('STRLEN', bucket .. 'r:' .. newest)
  end
end
return { clock_reply(now), records, due, oldest, claims, sampled, bytes }
