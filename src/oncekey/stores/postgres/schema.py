"""The schema: brought up to date at first use, and checked.

`prepare` reads first and locks only where there is something to do; what to do is planned again
under the lock, so two hosts may start at once. The tables live in a schema of their own. Must not
know drivers: it yields scripts and queries like the other programs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.stores.migrations import plan
from oncekey.stores.postgres.durability import Server, server_of
from oncekey.stores.postgres.program import Statement
from oncekey.stores.postgres.queries import Layout, fill
from oncekey.stores.postgres.rows import Row
from oncekey.stores.sql_files import Migration, load_queries

T = TypeVar("T")

SERVER_VERSION_MIN: Final = 130_000


class Script(NamedTuple):
    """Several statements without parameters, in one go and one transaction."""

    sql: str


Preparation = Generator[Statement | Script, Sequence[Row], T]


def prepare(
    layout: Layout, known: Sequence[Migration], *, migrate: bool = True
) -> Preparation[Server]:
    """Bring the schema up to `known`; what the server is like. ConfigurationError where the
    tables are of another kind, or may not be made."""
    server = server_of((yield Statement("server"))[0])
    if server.version < SERVER_VERSION_MIN:
        raise ConfigurationError(
            f"PostgreSQL {server.version // 10_000} is too old; oncekey needs 13 or newer"
        )
    missing = yield from missing_steps(layout, known)
    if len(missing) < len(known):
        yield from _check_layout(layout)  # before anything is added to tables of another kind
    if not missing:
        return (yield from _identify(server))
    lacks = f"schema {layout.schema!r} lacks {', '.join(step.name for step in missing)}"
    if not migrate:
        raise ConfigurationError(
            f"{lacks}; run `oncekey migrate` with a role that may create tables"
        )
    if server.standby:
        raise ConfigurationError(
            f"{lacks}, and this server is a read-only standby; connect to the primary"
        )
    yield Script(upgrade(layout, missing))
    yield from _check_layout(layout)  # another host may have been first, with other settings
    return (yield from _identify(server))


def _identify(server: Server) -> Preparation[Server]:
    identity, address, clock = (yield Statement("identify"))[0]
    return server._replace(identity=bytes(identity or b""), address=address, clock=clock)


def missing_steps(layout: Layout, known: Sequence[Migration]) -> Preparation[list[Migration]]:
    """The migrations this database lacks."""
    (has_table, _), *_ = yield Statement(
        "has_migrations", (f"{layout.quoted}.migrations", layout.quoted)
    )
    if not has_table:
        return list(known)
    rows = yield Statement("migrations")
    newer = [compatible for version, _, compatible in rows if version > known[-1].version]
    return plan([row[0] for row in rows], known, max(newer, default=0))


def upgrade(layout: Layout, missing: Sequence[Migration]) -> str:
    """The script that brings a database up to date, for running here or by hand.

    Safe to run twice and from two hosts at once: it waits for its turn, and each step is skipped
    where it has been done meanwhile.
    """
    parts = load_queries("oncekey.stores.postgres", "sql/upgrade.sql")
    script = [fill(parts["head"], layout) + ";"]
    for step in missing:
        text = fill(parts["step"], layout)
        for name, value in (
            ("version", str(step.version)),
            ("name", step.name),
            ("compatible", str(step.compatible or step.version)),
            ("sql", step.sql.strip()),
        ):
            text = text.replace("{" + name + "}", value)
        script.append(f"-- {step.version:04d} {step.name}\n{text};")
    return "\n\n".join([*script, "COMMIT;"]) + "\n"


def _check_layout(layout: Layout) -> Preparation[None]:
    rows = yield Statement("select_meta", ("retention",))
    found = bytes(rows[0][0]).decode() if rows else "nothing"
    if found != layout.words:
        raise ConfigurationError(
            f"schema {layout.schema!r} was made for retention {found!r}, this store is set to "
            f"{layout.words!r} (slots and microseconds per slot); use the same settings "
            "everywhere, or another schema for the new ones"
        )
