"""What can keep the demo from being played. Needs no package, so that the command can name it."""

from __future__ import annotations


class DemoFailed(Exception):
    """The demo itself could not run (not: a promise was broken). The text says why."""
