"""The blocking engine: `Once` and the threads behind it."""
