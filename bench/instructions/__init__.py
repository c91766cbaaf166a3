"""Instructions per operation, counted by callgrind: the same on a busy machine as on an idle one."""
