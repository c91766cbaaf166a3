"""What a store looks like from outside: for commands that inspect it before they change it, and for
`oncekey doctor`.

The package of a store offers functions of its URL:

    inspect(url) -> Inspection       reads, and creates nothing
    migrate(url) -> None             creates the store, or brings it up to date
    migration_script(url) -> str     the same as SQL to be run by hand; safe to run twice
    CHECKS                           every Check that its checkup can report, for the documentation
    checkup(url) -> Checkup          reads, creates nothing, and never reads a whole large table
    is_same_store(url, store)        whether a store object keeps its records where the URL says;
                                     None if that cannot be found out

This module owns the types that they exchange. It knows no store and opens nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

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


# How many of the newest records a store reads, to see how long operations take.
RUNS_MAX: Final = 2_000
# How long after its time garbage may stay before the sweeper counts as being behind.
SWEEP_LATE_US: Final = 24 * 3_600_000_000
# How many overdue records are counted before the report says "more than".
OVERDUE_MAX: Final = 10_000


class Severity(enum.StrEnum):
    """How bad a finding is, from good to bad.

    ok       it was checked, and it is as it should be
    info     it was not checked, or somebody should know of it; nothing is wrong
    warning  it works now, and will hurt under a condition that the finding names
    broken   the guarantee does not hold, or nothing works
    """

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    BROKEN = "broken"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    check      the name of the check, which never changes: `subject.what`
    severity   see Severity
    what       what was found, with the values that were read
    why        why it matters
    mend       what to do about it; empty if nothing is wrong
    """

    check: str
    severity: Severity
    what: str
    why: str
    mend: str = ""

    @property
    def subject(self) -> str:
        """What the check is about: a store, the app, a proxy."""
        return self.check.partition(".")[0]


class Check(NamedTuple):
    """A question about a store, an app or what is in front of it, with everything that is known
    before it is asked.

    name   `subject.what`
    asks   what is looked at
    why    why it matters
    mend   what to do if the answer is bad
    """

    name: str
    asks: str
    why: str
    mend: str

    def ok(self, what: str) -> Finding:
        return Finding(self.name, Severity.OK, what, self.why)

    def info(self, what: str, mend: str | None = None) -> Finding:
        return Finding(self.name, Severity.INFO, what, self.why, mend or self.mend)

    def warning(self, what: str, mend: str | None = None) -> Finding:
        return Finding(self.name, Severity.WARNING, what, self.why, mend or self.mend)

    def broken(self, what: str, mend: str | None = None) -> Finding:
        return Finding(self.name, Severity.BROKEN, what, self.why, mend or self.mend)


class ObservedRun(NamedTuple):
    """A finished first attempt, as its record tells: times in microseconds.

    took   from the claim to the outcome
    left   what was left of the lease then: as heartbeats renew at a third, this is more than two
           thirds of the lease while they work, and less than nothing if the owner was late; None
           if it ran in a caller's transaction, which needs no lease
    keep   how long its key deduplicates
    """

    operation: str
    took: int
    left: int | None
    keep: int


@dataclass(frozen=True, slots=True)
class Checkup:
    """What a store's checkup found, and the runs that its newest records tell of."""

    findings: list[Finding]
    runs: list[ObservedRun]


def overdue_text(count: int, oldest_us: int) -> str:
    """What a sweeper that is behind has left: how many records, and for how long."""
    counted = f"more than {OVERDUE_MAX:,}" if count > OVERDUE_MAX else f"{count:,}"
    return f"{counted} records could have been removed {oldest_us / 86_400_000_000:.1f} days ago"
