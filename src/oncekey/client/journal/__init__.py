"""The journal keeps the keys of unanswered requests in a file, so that they outlive the process."""

from __future__ import annotations

from oncekey.client.journal.journal import Journal

__all__ = ["Journal"]
