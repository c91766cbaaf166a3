"""Which migrations a database still needs: a pure plan, shared by the SQL stores.

Owns the rule that a schema only moves forward and is never guessed. Knows no engine; the store
reads what was applied and runs what is planned, under a lock of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncekey.core.errors import ConfigurationError
from oncekey.stores.sql_files import Migration


def plan(
    applied: Sequence[int], known: Sequence[Migration], compatible: int = 0
) -> list[Migration]:
    """The migrations to run, in order. ConfigurationError where the two do not fit together.

    `compatible` is what the applied ones that `known` lacks say of older releases: those that know
    the schema up to there keep working, so that hosts can be upgraded one after the other.
    """
    versions = [migration.version for migration in known]
    done = sorted(applied)
    if versions and done and done[-1] > versions[-1] and not 0 < compatible <= versions[-1]:
        raise ConfigurationError(
            f"the database has oncekey's schema {done[-1]}, this release knows up to "
            f"{versions[-1]}; install the release that wrote it, or a newer one"
        )
    if done[: len(versions)] != versions[: len(done)]:
        raise ConfigurationError(
            f"the database lists the schema steps {done}, this release expects "
            f"{versions[: len(done)]}; its table of migrations was changed by hand, restore it "
            "from a backup"
        )
    return list(known[len(done) :])
