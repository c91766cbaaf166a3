"""The client side: requests that are retried under one key, and keys that travel downstream."""
