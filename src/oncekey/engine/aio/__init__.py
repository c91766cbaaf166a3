"""The asyncio engine: `AsyncOnce` and the tasks behind it."""
