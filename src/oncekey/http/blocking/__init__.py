"""What the adapters for WSGI, Flask and Django need: the guard of a request, and its messages."""
