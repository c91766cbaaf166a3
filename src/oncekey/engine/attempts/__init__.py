"""One attempt: its runner, its steps, its outcome."""
