"""Builds what is generated in the documentation; nothing here is part of the package."""
