#!lua flags=no-writes
-- Finds out which commands of the other scripts this user may not run. Nothing is written: the
-- server checks the user's rights first, and then refuses every write, because of the flags.
--
-- KEYS    a record's key; nothing need be there
-- Reply   the time, 0 if the user may not even read it; then the names of the forbidden commands
local key = KEYS[1]
local COMMANDS = {
  { 'TIME' }, { 'GET', key }, { 'SET', key, '' }, { 'DEL', key }, { 'STRLEN', key },
  { 'GETRANGE', key, 0, 0 }, { 'SETRANGE', key, 0, '' },
  { 'PEXPIRETIME', key }, { 'PEXPIREAT', key, 1 },
  { 'HSET', key, '', '' }, { 'HDEL', key, '' }, { 'HMGET', key, '' }, { 'HVALS', key },
  { 'ZADD', key, 0, '' }, { 'ZREM', key, '' }, { 'ZSCORE', key, '' }, { 'ZCARD', key },
  { 'ZCOUNT', key, 0, 0 }, { 'ZRANGE', key, 0, 0 }, { 'ZSCAN', key, 0 },
  { 'ZRANGEBYSCORE', key, 0, 0 }, { 'ZREVRANGEBYSCORE', key, 0, 0 },
}
local reply = { 0 }
for _, command in ipairs(COMMANDS) do
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err and string.find(answer.err, 'permission', 1, true) then
    reply[#reply + 1] = command[1]
  end
end
if reply[2] ~= 'TIME' then reply[1] = clock_reply(read_clock()) end
return reply
