"""What a store looks like from outside, for commands that look before they touch it.

The package of a store offers three functions of its URL:

    inspect(url) -> Inspection       reads, and creates nothing
    migrate(url) -> None             makes the store, or brings it up to date
    migration_script(url) -> str     the same as SQL to be run by hand; safe to run twice

Owns the words in which they answer. Knows no store and opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncekey.core.guarantees import Guarantee


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """One store as it was met.

    name          where it is, for messages: without password, as short as can be found again
    exists        whether there are tables of oncekey at all
    absence       if not, why: what was found there instead, and what to do
    has_records   whether anything is stored in them, also past generations
    applied       the schema's steps that were done, by number
    missing       those this release knows and the store lacks
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
        """The number of the last step that was done; 0 for none."""
        return max(self.applied, default=0)
