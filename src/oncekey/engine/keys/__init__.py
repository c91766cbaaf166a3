"""What operators do with keys: list them, decide them, measure the store."""
