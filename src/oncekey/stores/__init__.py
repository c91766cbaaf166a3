"""Stores: one program per engine and the executors that run it. Import core only."""
