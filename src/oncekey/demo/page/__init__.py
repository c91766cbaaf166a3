"""The demo's page: the views behind it and its static files."""
