"""The outside world: a payment provider with an HTTP API and books of its own. Knows no oncekey."""
