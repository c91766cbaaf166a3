"""When a store reads its server's settings again: beside a claim, every few seconds.

This module knows neither the settings nor how they are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class SettingsWatch:
    """Decides when a claim also reads the server's settings, and passes them on to `notify`."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._due = 0.0
        self.notify: Callable[[Any], None] = lambda settings: None

    def is_due(self) -> bool:
        """True if this claim must read the settings. So must those that are sent beside it, until
        one of them has: after a pause, what was read before it says nothing."""
        return self._now() >= self._due

    def renew(self) -> None:
        """The settings were read just now."""
        self._due = self._now() + self._seconds

    def expire(self) -> None:
        """Something has happened, so the next claim must read the settings."""
        self._due = 0.0
