"""Callers' connections to the store's file: sqlite3 or aiosqlite (drivers.py), and SQLAlchemy."""
