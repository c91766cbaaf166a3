"""What a store looks like from outside, for commands that inspect it before they change it.

The package of a store offers three functions of its URL:

    inspect(url) -> Inspection       reads, and creates nothing
    migrate(url) -> None             creates the store, or brings it up to date
    migration_script(url) -> str     the same as SQL to be run by hand; safe to run twice

This module owns the type that `inspect` returns. It knows no store and opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncekey.core.guarantees import Guarantee


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """One store as `inspect` found it.

    name          where the store is, for messages: without its password, and as short as possible
    exists        True if oncekey's tables are there
    absence       why they are not: what was found instead, and what to do
    has_records   True if anything is stored in them, including past generations
    applied       the migrations that were applied, by number
    missing       the migrations this release knows and the store lacks
    guarantee     what a store there can promise
    """

    name: str
    exists: bool
    has_records: bool
    applied: dict[int, str]
    missing: list[str]
    guarantee: Guarantee
    absence: str = ""

    @property
    def version(self) -> int:
        """The number of the last migration that was applied; 0 for none."""
        return max(self.applied, default=0)
