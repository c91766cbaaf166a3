"""The journal keeps the keys of unanswered requests in a file, so that they outlive the process.

journal.py decides which request holds which entry, entries.py is the table of entries, and file.py
the SQLite database it is in.
"""

from __future__ import annotations

from oncekey.client.journal.journal import EntryHandle, Journal

__all__ = ["EntryHandle", "Journal"]
