-- Finds or creates the group, and the identity of the stream.
-- KEYS: stream, what tells this server from others. ARGV: group, where a new group starts ('' if none may be made), what the names of
-- markers begin with, the name of a new marker ('' if none is wanted), an id for the server.
-- Returns whether there is a group now, the marker, how many groups there are beside
-- markers, and the id of the server. It is copied with the data, so it outlives a failover.
local group, start, prefix, wanted = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function groups()
  if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
  return redis.call('XINFO', 'GROUPS', KEYS[1])
end

local is_found, marker, count = 0, '', 0
for _, item in ipairs(groups()) do
  local name = named(item)['name']
  if string.sub(name, 1, #prefix) == prefix then
    marker = name
  else
    count = count + 1
    if name == group then is_found = 1 end
  end
end
if is_found == 0 then
  if start == '' then return {0, '', count, ''} end
  -- What was there before the group is counted as read, so that what it misses later can be told.
  local before = 0
  if redis.call('EXISTS', KEYS[1]) == 1 then
    local stream = named(redis.call('XINFO', 'STREAM', KEYS[1]))
    before = stream['entries-added']
    if start ~= '$' then before = before - stream['length'] end
  end
  if start == '$' or start == '0' then
    redis.call('XGROUP', 'CREATE', KEYS[1], group, start, 'MKSTREAM', 'ENTRIESREAD', before)
  else
    redis.call('XGROUP', 'CREATE', KEYS[1], group, start, 'MKSTREAM')
  end
  count = count + 1
end
if marker == '' and wanted ~= '' then
  -- A group lives in its stream: it is stored, copied, renamed and deleted with it. This one is
  -- never read from, and it stands behind every entry, so that nothing waits for it.
  local last = '18446744073709551615-18446744073709551615'
  redis.call('XGROUP', 'CREATE', KEYS[1], wanted, last)
  marker = wanted
end
redis.call('SET', KEYS[2], ARGV[5], 'NX')
return {1, marker, count, redis.call('GET', KEYS[2])}
