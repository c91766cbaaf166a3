"""The PostgreSQL schema: brought up to date at first use, and checked.

`prepare` reads first and takes the lock only if a migration is missing; it is checked again under
the lock, so two hosts may start at once. The tables are in a schema of their own. This module must
not know drivers: it yields scripts and statements like the other programs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.durability import Server, parse_server, parse_settings
from oncekey.stores.postgres.queries import Layout, substitute
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.statements import Statement
from oncekey.stores.sql_files import Migration, load_queries, plan

T = TypeVar("T")

SERVER_VERSION_MIN: Final = 130_000


class Script(NamedTuple):
    """Several statements without parameters, to be sent as one text that is one transaction."""

    sql: str


SchemaProgram = Generator[Statement | Script, Sequence[Row], T]


def prepare(
    layout: Layout, known: Sequence[Migration], *, migrate: bool = True
) -> SchemaProgram[Server]:
    """Bring the schema up to `known` and return the server's settings. ConfigurationError if the
    tables have another layout, or if migrations are missing and must not be run."""
    server = parse_server((yield Statement("server"))[0])
    if server.version < SERVER_VERSION_MIN:
        raise ConfigurationError(
            f"PostgreSQL {server.version // 10_000} is too old; oncekey needs 13 or newer"
        )
    missing = yield from missing_migrations(layout, known)
    if len(missing) < len(known):
        yield from _check_layout(layout)  # before tables of another layout are changed
    if not missing:
        return (yield from _identify(server))
    lacks = f"schema {layout.schema!r} lacks {', '.join(migration.name for migration in missing)}"
    if not migrate:
        raise ConfigurationError(
            f"{lacks}; run `oncekey migrate` with a role that may create tables"
        )
    if server.standby:
        raise ConfigurationError(
            f"{lacks}, and this server is a read-only standby; connect to the primary"
        )
    yield Script(upgrade_script(layout, missing))
    yield from _check_layout(layout)  # another host may have been faster, with other settings
    return (yield from _identify(server))


def _identify(server: Server) -> SchemaProgram[Server]:
    identity, address, clock, settings = (yield Statement("identify"))[0]
    found = parse_settings(settings, server.version)
    return found._replace(identity=bytes(identity or b""), address=address, clock=clock)


def missing_migrations(
    layout: Layout, known: Sequence[Migration]
) -> SchemaProgram[list[Migration]]:
    """The migrations that this database lacks."""
    (has_table, _), *_ = yield Statement(
        "has_migrations", (f"{layout.quoted}.migrations", layout.quoted)
    )
    if not has_table:
        return list(known)
    rows = yield Statement("migrations")
    newer = [compatible for version, _, compatible in rows if version > known[-1].version]
    return plan([row[0] for row in rows], known, max(newer, default=0))


def upgrade_script(layout: Layout, missing: Sequence[Migration]) -> str:
    """The script that brings a database up to date. It is run by the store or by hand.

    It is safe to run twice and from two hosts at once: it waits for a lock, and skips each
    migration that was applied meanwhile.
    """
    parts = load_queries("oncekey.stores.postgres", "sql/upgrade.sql")
    script = [substitute(parts["head"], layout) + ";"]
    for migration in missing:
        text = substitute(parts["migration"], layout)
        for name, value in (
            ("version", str(migration.version)),
            ("name", migration.name),
            ("compatible", str(migration.compatible or migration.version)),
            ("sql", migration.sql.strip()),
        ):
            text = text.replace("{" + name + "}", value)
        script.append(f"-- {migration.version:04d} {migration.name}\n{text};")
    return "\n\n".join([*script, "COMMIT;"]) + "\n"


def _check_layout(layout: Layout) -> SchemaProgram[None]:
    rows = yield Statement("select_meta", ("retention",))
    found = bytes(rows[0][0]).decode() if rows else "nothing"
    if found != layout.description:
        raise ConfigurationError(
            f"schema {layout.schema!r} was made for retention {found!r}, this store is set to "
            f"{layout.description!r} (slots and microseconds per slot); use the same settings "
            "everywhere, or another schema for the new ones"
        )
