"""A store that is two: the old and the new one, while keys move from the first to the second.

`DualStore(old, new)` and `AsyncDualStore(old, new)` take two stores of any kind; the URL
`moving://OLD,NEW` names them. How a move goes is in docs/how-to/move.md, and why it is safe beside
processes that use one of the two stores alone, in core/moved_records.py and dual_program.py.
"""

from oncekey.stores.move.dual_store import AsyncDualStore, DualStore

__all__ = ["AsyncDualStore", "DualStore"]
