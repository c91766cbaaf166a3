"""The verifier on published middlewares, and the table that comes of it."""
