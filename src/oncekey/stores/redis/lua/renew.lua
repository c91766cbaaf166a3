#!lua flags=allow-oom
-- Renews the leases of the claims that their owners still hold.
--
-- ARGV[3...]  per key: 8 bytes fence, 16 owner, 8 length of the lease
-- Reply       the time, then the numbers of the keys whose claims are lost
local now = read_clock()
local reply = { clock_reply(now) }
for number = 1, keys_count do
  local key, command = KEYS[number], ARGV[number + 2]
  local head = call('GETRANGE', key, 0, 82)
  if byte(head, 2) == 1 and sub(head, 4, 11) == sub(command, 1, 8)
    and sub(head, 68, 83) == sub(command, 9, 24) then
    local revision = (unpack_('>I4', head, 12) + 1) % 4294967296
    local lease_until = now + unpack_('>I8', command, 25)
    call('SETRANGE', key, 11, pack('>I4', revision) .. sub(head, 16, 27) .. pack('>I8', lease_until))
  else
    reply[#reply + 1] = number
  end
end
return reply
