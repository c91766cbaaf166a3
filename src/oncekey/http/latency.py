"""Learns how long the requests of each rule take, for the Retry-After of their duplicates.

The averages are in memory, and nothing depends on their being exact.
"""

from __future__ import annotations

from oncekey.http.rules import Rule

_WEIGHT = 0.2


class LatencyAverages:
    """An exponential moving average of the duration of requests, per rule."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by id(rule): rules are few and live for ever

    def record(self, rule: Rule, seconds: float) -> None:
        old = self._seconds.get(id(rule))
        self._seconds[id(rule)] = seconds if old is None else old + _WEIGHT * (seconds - old)

    def average(self, rule: Rule) -> float | None:
        """The average in seconds; None before the first request."""
        return self._seconds.get(id(rule))
