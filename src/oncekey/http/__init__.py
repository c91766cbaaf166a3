"""The Idempotency-Key header over the engine: pure rules, and an adapter per kind of app."""
