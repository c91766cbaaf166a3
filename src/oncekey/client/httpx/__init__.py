"""The client for httpx, sync and async."""
