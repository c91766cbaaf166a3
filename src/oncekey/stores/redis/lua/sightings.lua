#!lua flags=no-writes
-- Returns what is written down about replicas (stores/replica_sightings.py).
--
-- KEYS    the hash of the replicas
-- Reply   the time, and the values of the hash
return { clock_reply(read_clock()), unpack(call('HVALS', KEYS[1])) }
