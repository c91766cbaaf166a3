#!lua flags=allow-oom
-- Removes those of the given records that are garbage, and postpones the others.
--
-- Reply   the time, and how many were removed. What the server has removed by itself counts: its
--         index entries were still there
local now = read_clock()
local POSTPONED_AT_LEAST = 60000000
local FOREVER = 9007199254740992
local removed = 0
local floors = {}

-- When a record is garbage (core/record.py), and when to look at it again if it is not yet.
local function times_of(head)
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

for number = 1, keys_count do
  local key = KEYS[number]
  local bucket, id = bucket_of(key), id_of(key)
  local head = call('GETRANGE', key, 0, HEAD - 1)
  local garbage_at, again = 0, 0
  if byte(head, 1) == VERSION and #head == HEAD then
    garbage_at, again = times_of(head)
  elseif #head > 0 then
    -- A newer release wrote it and has its own sweeper.
    garbage_at, again = math.huge, now + POSTPONED_AT_LEAST
  end
  if now >= garbage_at then
    local fence = call('ZSCORE', bucket .. 'claims', id)
    if fence then floors[bucket] = math.max(floors[bucket] or 0, tonumber(fence)) end
    call('DEL', key)
    call('ZREM', bucket .. 'claims', id)
    call('ZREM', bucket .. 'open', id)
    removed = removed + call('ZREM', bucket .. 'due', id)
  else
    call('ZADD', bucket .. 'due', again, id)
  end
end
for bucket, fence in pairs(floors) do
  local floor = call('GET', bucket .. 'floor')
  if not floor or tonumber(floor) < fence then
    call('SET', bucket .. 'floor', string.format('%.0f', fence))
  end
end
return { told(now), removed }
