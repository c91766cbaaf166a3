"""Checks from outside, over real sockets, whether an HTTP API is safe to retry."""
