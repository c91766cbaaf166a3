"""How long requests usually take, to tell a client when it is worth asking again.

A moving average per rule, in memory; nothing depends on it being right.
"""

from __future__ import annotations

from oncekey.http.rules import Rule

_WEIGHT = 0.2


class LatencyAverages:
    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by the rule's identity: there are few, for ever

    def record(self, rule: Rule, seconds: float) -> None:
        before = self._seconds.get(id(rule))
        now = seconds if before is None else before + _WEIGHT * (seconds - before)
        self._seconds[id(rule)] = now

    def average(self, rule: Rule) -> float | None:
        return self._seconds.get(id(rule))
