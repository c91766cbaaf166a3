"""A caller's connection to the store's file: a driver's own, or SQLAlchemy's."""
