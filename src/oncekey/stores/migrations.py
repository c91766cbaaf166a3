"""Which migrations a database still needs: a pure plan, shared by the SQL stores.

Owns the rule that a schema only moves forward and is never guessed. Knows no engine; the store
reads what was applied and runs what is planned, under a lock of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncekey.core.errors import ConfigurationError
from oncekey.stores.sql import Migration


def plan(
    applied: Sequence[int], known: Sequence[Migration], compatible: int = 0
) -> list[Migration]:
    """The migrations to run, in order. ConfigurationError where the two do not fit together.

    `compatible` is what the newest applied one says of older releases: those that know the schema
    up to there keep working, so that hosts can be upgraded one after the other.
    """
    versions = [migration.version for migration in known]
    newest = max(applied, default=0)
    if versions and newest > versions[-1]:
        if 0 < compatible <= versions[-1]:
            return []
        raise ConfigurationError(
            f"the database has oncekey's schema {newest}, this release knows up to "
            f"{versions[-1]}; install the release that wrote it, or a newer one"
        )
    if sorted(applied) != versions[: len(applied)]:
        raise ConfigurationError(
            f"the database lists the schema steps {sorted(applied)}, this release expects "
            f"{versions[: len(applied)]}; the table oncekey_migrations was changed by hand, "
            "restore it from a backup"
        )
    return list(known[len(applied) :])
