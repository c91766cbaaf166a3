"""Queues: guarded consumption beside the bare loop of the same client and broker, and a peer."""
