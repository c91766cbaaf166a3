"""The two handlers that the demo serves side by side: one guarded by oncekey, and a naive one.

Owns their names and the path below which each is served.
"""

from __future__ import annotations

import enum


class Handler(enum.StrEnum):
    """Which of the two handlers a request is for."""

    NAIVE = "naive"
    GUARDED = "guarded"

    @property
    def root(self) -> str:
        """What its paths begin with."""
        return "/naive" if self is Handler.NAIVE else ""


def handler_of(path: str) -> Handler:
    """The handler that serves a path."""
    return Handler.NAIVE if path.startswith(f"{Handler.NAIVE.root}/") else Handler.GUARDED
