#!lua
-- Claims the keys that have no record, and returns the records of the others.
--
-- ARGV[3]     when nobody waits for this claim any more; empty if that is not known
-- ARGV[4...]  per key a record to write, whose lease_until is the length of its lease
-- Reply       the time; then, for each key that was not claimed with that time as its fence, its
--             number and either the fence it was claimed with or the record that is there
local now = read_clock()
if ARGV[3] ~= '' and now > tonumber(ARGV[3]) then
  return redis.error_reply('TOOLATE the claim came after its sender had stopped waiting')
end
local fresh
local stamp = pack('>I8', now)
local reply = { clock_reply(now) }
for number = 1, keys_count do
  local key, template = KEYS[number], ARGV[number + 3]
  local bucket = bucket_of(key)
  local fence = now
  local floor = call('GET', bucket .. 'floor')
  if floor and tonumber(floor) >= now then fence = floor + 1 end
  local lease, _, keep, audit = unpack_('>I8I8I8I8', template, 28)
  local lease_until = now + lease
  local before, after = sub(template, 12, 19), stamp .. pack('>I8', lease_until) .. sub(template, 36)
  local head = sub(template, 1, 3)
  local found = call('SET', key, head .. pack('>I8', fence) .. before .. after, 'NX', 'GET')
  if found then
    reply[#reply + 1] = number
    reply[#reply + 1] = found
  else
    fresh = bucket
    local id, claims = id_of(key), bucket .. 'claims'
    if call('ZADD', claims, 'NX', fence, id) == 0 then
      -- The server has removed an expired record. Its index entry has the fence to exceed.
      local last = tonumber(call('ZSCORE', claims, id))
      if last >= fence then fence = last + 1 end
      call('SET', key, head .. pack('>I8', fence) .. before .. after)
      call('ZADD', claims, fence, id)
    end
    call('ZADD', bucket .. 'due', lease_until + keep + audit, id)
    call('ZADD', bucket .. 'open', fence, id)
    if fence ~= now then
      reply[#reply + 1] = number
      reply[#reply + 1] = fence
    end
  end
end
-- So that nothing grows without a sweeper, a batch also removes what is due in one of its buckets,
-- about as much as it has added. A bucket in which nothing was claimed may be moving to another
-- node, record by record, so that one may only seem to be gone.
if fresh and ARGV[1] == '' then
  local floors, most = {}, 2 * keys_count
  for _, id in ipairs(call('ZRANGEBYSCORE', fresh .. 'due', '-inf', now, 'LIMIT', 0, most)) do
    collect(fresh, id, now, floors)
  end
  raise_floors(floors)
end
return reply
