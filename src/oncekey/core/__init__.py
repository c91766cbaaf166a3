"""The pure core: no I/O, clock, randomness, threads, asyncio or logging. Imports nothing above."""
