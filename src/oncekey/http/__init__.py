"""HTTP over the engine: pure rules first, then one adapter per kind of app."""
