"""What an engine does by itself: heartbeats, sweeping, finishing abandoned operations."""
