"""The client for httpx: transport.py sends, request.py and bodies.py adapt what httpx has.

The transports are public as `oncekey.client.IdempotentTransport` and `AsyncIdempotentTransport`.
"""
