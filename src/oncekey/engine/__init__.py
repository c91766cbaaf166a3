"""Engines: drivers of the flow, blocking and asyncio, and what they share. Import core only."""
