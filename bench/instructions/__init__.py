"""Instructions per operation, counted by callgrind, which a busy machine does not change."""
