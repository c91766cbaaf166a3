"""The rules that every crossing must keep, in the order in which the judge comes to them."""

from __future__ import annotations

from typing import Final

# name -> what it says, as the page shows it
RULES: Final = {
    "first": "a first call runs once and has one effect",
    "replay": "a retry gets the same answer, and nothing runs",
    "mismatch": "another request under the same key is refused, and nothing runs",
    "error": "a body that raises: its error is stored, or, where the level allows it, a retry runs",
    "death": "an owner that dies after its effect: the key is unknown, or, where the level allows "
    "it, a retry runs and ends with one effect",
    "moved": "what ran before a move, or before the guarantee changed, is replayed after it",
    "label": "the guarantee says what the store is worth now",
    "figures": "what a reader shows is what was counted: keys and their states, pending, unknown, "
    "rows, bytes",
    "swept": "once `keep` and `audit` are over, a sweep leaves nothing but undecided keys, and the "
    "key is fresh again",
    "effects": "every key that succeeded has one effect, whatever happened meanwhile",
}
