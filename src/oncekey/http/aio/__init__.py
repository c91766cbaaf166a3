"""What the adapters for ASGI share: messages, runs and tasks of requests, and lifespans of apps."""
