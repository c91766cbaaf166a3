-- What the scripts share that remove garbage. The loader puts this behind common.lua for them.
local POSTPONED_AT_LEAST = 60000000
local FOREVER = 9007199254740992

-- When a record is garbage (core/record.py), and when to look at it again if it is not yet.
local function times_of(head, now)
  local state, is_retry_safe = byte(head, 2), byte(head, 3) == 1
  local lease_until, finished_at, keep, audit, keep_unknown = unpack_('>I8I8I8I8I8', head, 28)
  local is_undecided = state == 4 or (state == 1 and not is_retry_safe)
  local ends_at = finished_at ~= 0 and finished_at or lease_until
  local garbage_at = ends_at + (is_undecided and keep_unknown or keep) + audit
  if is_undecided and keep_unknown >= FOREVER then garbage_at = math.huge end
  -- Whoever ends an undecided record does not move it, so it must be looked at before long.
  local again = now + math.max(keep + audit, POSTPONED_AT_LEAST)
  return garbage_at, math.min(garbage_at, again)
end

-- Removes a record if it is garbage, and what the server has left of one that it removed by itself;
-- postpones any other. `floors` notes the highest fence of each bucket that was removed. Returns
-- how many it removed.
local function collect(bucket, id, now, floors)
  local key = bucket .. 'r:' .. id
  local head = call('GETRANGE', key, 0, HEAD - 1)
  local garbage_at, again = 0, 0
  if byte(head, 1) == VERSION and #head == HEAD then
    garbage_at, again = times_of(head, now)
  elseif #head > 0 then
    -- A newer release wrote it and has its own sweeper.
    garbage_at, again = math.huge, now + POSTPONED_AT_LEAST
  end
  if now < garbage_at then
    call('ZADD', bucket .. 'due', again, id)
    return 0
  end
  local fence = call('ZSCORE', bucket .. 'claims', id)
  if fence then floors[bucket] = math.max(floors[bucket] or 0, tonumber(fence)) end
  if #head > 0 then call('DEL', key) end
  call('ZREM', bucket .. 'claims', id)
  call('ZREM', bucket .. 'open', id)
  return call('ZREM', bucket .. 'due', id)
end

-- Raises the floors of buckets to these fences.
local function raise_floors(floors)
  for bucket, fence in pairs(floors) do
    local floor = call('GET', bucket .. 'floor')
    if not floor or tonumber(floor) < fence then
      call('SET', bucket .. 'floor', string.format('%.0f', fence))
    end
  end
end
