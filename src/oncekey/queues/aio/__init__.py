"""Consumers in tasks, over `AsyncOnce`."""
