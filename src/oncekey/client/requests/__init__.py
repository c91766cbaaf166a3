"""The client for the requests library: adapter.py sends, the others adapt what requests has.

The adapter is public as `oncekey.client.IdempotentAdapter`.
"""
