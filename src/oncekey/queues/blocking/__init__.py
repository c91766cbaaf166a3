"""Consumers in threads, over `Once`."""
