"""The scenarios: ways in which a client gets a payment done twice, were it not for its key."""
