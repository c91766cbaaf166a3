"""The client for the requests library."""
