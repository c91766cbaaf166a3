#!lua flags=no-writes
-- Goes one step through the ids of buckets, for those that match a pattern.
--
-- KEYS        the sorted sets of claims
-- ARGV[3]     the pattern
-- ARGV[4]     about how many ids to look at per key
-- ARGV[5...]  per key: where its last step has ended
-- Reply       the time, then per key: where this step has ended, and the ids that match
local reply = { clock_reply(read_clock()) }
for number = 1, keys_count do
  local step = call('ZSCAN', KEYS[number], ARGV[number + 4], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
  local found = { step[1] }
  for at = 1, #step[2], 2 do found[#found + 1] = step[2][at] end
  reply[number + 1] = found
end
return reply
