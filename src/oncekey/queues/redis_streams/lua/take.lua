-- Takes entries for a consumer: first those that are due again, then new ones.
-- KEYS: stream, due times, parked. ARGV: group, consumer, most, milliseconds they are held, marker,
-- '1' to take also what a blocking read, or a lost reply, has left to this consumer.
-- Returns the entries as {id, deliveries, fields}, those that are gone as {id, deliveries, consumer},
-- and in how many milliseconds the next one is due (-1: none is pending).
local group, consumer, most, marker = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[5]
check_identity(marker)
local now = now_ms()
local held_until = now + tonumber(ARGV[4])
local taken, gone, times = {}, {}, {}

local function take(id, deliveries, fields)
  taken[#taken + 1] = {id, deliveries, fields}
  times[#times + 1] = held_until
  times[#times + 1] = id
end

-- A pending entry that was trimmed can never be handled. It is noted where operators look.
local function give_up(id, pending)
  redis.call('XADD', KEYS[3], '*', 'oncekey-lost', id, 'oncekey-deliveries', pending.deliveries,
    'oncekey-consumer', pending.consumer)
  redis.call('XACK', KEYS[1], group, id)
  redis.call('ZREM', KEYS[2], id)
  gone[#gone + 1] = {id, pending.deliveries, pending.consumer}
end

if ARGV[6] == '1' then
  for _, item in ipairs(redis.call('XPENDING', KEYS[1], group, '-', '+', most * 2, consumer)) do
    local id, deliveries = item[1], item[4]
    if #taken < most and not redis.call('ZSCORE', KEYS[2], id) then
      local fields = fields_of(id)
      if fields then
        take(id, deliveries, fields)
      else
        give_up(id, {consumer = consumer, deliveries = deliveries})
      end
    end
  end
end

local due = {}
if #taken < most then
  due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, most - #taken)
end
for _, id in ipairs(due) do
  local pending = pending_of(group, id)
  if not pending then
    redis.call('ZREM', KEYS[2], id)
  else
    local claimed = redis.call('XCLAIM', KEYS[1], group, consumer, 0, id)[1]
    if claimed then
      take(id, pending.deliveries + 1, claimed[2])
    else
      give_up(id, pending)
    end
  end
end

if #taken < most then
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', most - #taken,
    'STREAMS', KEYS[1], '>')
  for _, entry in ipairs(read and read[1][2] or {}) do
    take(entry[1], 1, entry[2])
  end
end

if #times > 0 then redis.call('ZADD', KEYS[2], unpack(times)) end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local wait = -1
if first[2] then wait = math.max(0, tonumber(first[2]) - now) end
return {taken, gone, wait}
