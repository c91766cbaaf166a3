"""The payment provider: a service with an HTTP API and a ledger of its own. It knows no oncekey."""
