#!lua flags=no-writes
-- Reads the beginnings of ranges of sorted sets.
--
-- KEYS        sorted sets
-- ARGV[3]     asc or desc
-- ARGV[4...]  per key three: the lowest score, the highest score, or now; how many members
-- Reply       the time, then per key its members, each followed by its score
local now = read_clock()
local reply = { clock_reply(now) }
for number = 1, keys_count do
  local lowest, highest, count = ARGV[3 * number + 1], ARGV[3 * number + 2], ARGV[3 * number + 3]
  if highest == 'now' then highest = now end
  if ARGV[3] == 'asc' then
    reply[number + 1] =
      call('ZRANGEBYSCORE', KEYS[number], lowest, highest, 'WITHSCORES', 'LIMIT', 0, count)
  else
    reply[number + 1] =
      call('ZREVRANGEBYSCORE', KEYS[number], highest, lowest, 'WITHSCORES', 'LIMIT', 0, count)
  end
end
return reply
