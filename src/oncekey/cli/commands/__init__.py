"""One module per command: its help, its options, what it prints."""
