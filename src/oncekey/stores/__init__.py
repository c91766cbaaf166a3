"""Stores: each engine has one program of statements and the code that runs it on a driver.

Stores import the core and nothing above it.
"""
