#!lua flags=allow-oom
-- Elects one token to do the background work (stores/store_rules.py: election_holds).
--
-- KEYS      the hash of the election
-- ARGV[3]   the token
-- ARGV[4]   for how long it is elected
-- Reply     the time, and 1 if the token is elected, else 0
local now = read_clock()
local token, since, ends = unpack(call('HMGET', KEYS[1], 'token', 'since', 'until'))
if token and token ~= ARGV[3] then
  since, ends = tonumber(since), tonumber(ends)
  if 2 * since - ends < now and now < ends then return { clock_reply(now), 0 } end
end
local until_ = string.format('%.0f', now + ARGV[4])
call('HSET', KEYS[1], 'token', ARGV[3], 'since', string.format('%.0f', now), 'until', until_)
return { clock_reply(now), 1 }
