"""One module per command, named like it: its help, its options, and what it prints."""
