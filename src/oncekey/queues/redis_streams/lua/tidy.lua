-- Looks after the group, a part at a time.
-- KEYS: stream, due times. ARGV: group, milliseconds after which a pending entry without a due time
-- is abandoned, where to look from, at how many, milliseconds after which a silent consumer without
-- entries is removed, what the names of such consumers begin with, what the names of markers begin
-- with, '1' to trim what all groups are done with.
-- Returns where to look from next, and how many entries the group has never been given.
local group, abandoned_ms, start, most = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local gone_ms, consumers, markers = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local now = now_ms()

-- 1. A consumer that died between a blocking read and its due time, or that knows nothing of these,
--    has left entries that only the list of pending ones knows.
local pending = redis.call('XPENDING', KEYS[1], group, start, '+', most)
for _, item in ipairs(pending) do
  if item[3] >= abandoned_ms and not redis.call('ZSCORE', KEYS[2], item[1]) then
    redis.call('ZADD', KEYS[2], now, item[1])
  end
end
local following = #pending == most and '(' .. pending[most][1] or '-'

-- 2. Removing a consumer removes its pending entries, so it must have none.
for _, item in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group)) do
  local consumer = named(item)
  local is_one = string.sub(consumer['name'], 1, #consumers) == consumers
  if is_one and consumer['pending'] == 0 and consumer['idle'] >= gone_ms then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], group, consumer['name'])
  end
end

-- 3. What was trimmed before the group had it; and what no group needs any more.
local missed, lowest = 0, nil
local stream = named(redis.call('XINFO', 'STREAM', KEYS[1]))
local removed = stream['entries-added'] - stream['length']
local first = stream['recorded-first-entry-id']
for _, item in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local one = named(item)
  if string.sub(one['name'], 1, #markers) ~= markers then
    local last = one['last-delivered-id']
    local read = one['entries-read']
    if one['name'] == group and read and (stream['length'] == 0 or is_lower(last, first)) then
      missed = math.max(0, removed - read)
    end
    local low = redis.call('XPENDING', KEYS[1], one['name'])[2] or last
    if not lowest or is_lower(low, lowest) then lowest = low end
  end
end
if ARGV[8] == '1' and lowest then redis.call('XTRIM', KEYS[1], 'MINID', lowest) end
return {following, missed}
