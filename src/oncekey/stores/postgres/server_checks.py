"""The checks of `oncekey doctor` on a PostgreSQL server: what it does with a commit, and who is
connected to it.

Each check is a function of what was read (`ServerState`), so that every answer can be tried without
a server that gives it. Checks of oncekey's own tables are in table_checks.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from oncekey.stores.inspection import Check, Finding
from oncekey.stores.postgres import durability
from oncekey.stores.postgres.checkup_session import CheckupSession, Pooler
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.schema import SERVER_VERSION_MIN
from oncekey.stores.replica_sightings import ReplicaMemory

CLOCK_SKEW_US: Final = 1_000_000
LONG_TRANSACTION_SECONDS: Final = 3_600
# Transactions after which a database stops taking commands; the server warns shortly before.
XID_LIMIT: Final = 2_000_000_000

VERSION: Final = Check(
    "postgres.version",
    "the server's version",
    "oncekey's functions need PostgreSQL 13 or newer",
    "upgrade the server",
)
POOLER: Final = Check(
    "postgres.pooler",
    "whether a pooler is in between, and whether its mode fits the URL's option pooler",
    "behind a pooler in transaction mode settings of a session are lost or belong to others, "
    "synchronous_commit and the timeouts among them; in statement mode there are no transactions",
    "add pooler=true to the URL for transaction mode; use session or transaction mode, never "
    "statement mode",
)
PRIMARY: Final = Check(
    "postgres.primary",
    "whether the server takes writes",
    "on a standby or in a read-only session no key can be claimed, and every operation is refused",
    "connect to the primary (target_session_attrs=read-write in the URL), and reset "
    "default_transaction_read_only",
)
FSYNC: Final = Check(
    "postgres.fsync",
    "the server's setting fsync",
    "without it a crash of the host loses or corrupts commits that were acknowledged, and their "
    "operations run a second time",
    "set fsync = on, reload, and take a new base backup",
)
FULL_PAGE_WRITES: Final = Check(
    "postgres.full-page-writes",
    "the server's setting full_page_writes",
    "without it a crash of the host can leave half-written pages in the tables",
    "set full_page_writes = on and reload",
)
SYNCHRONOUS_COMMIT: Final = Check(
    "postgres.synchronous-commit",
    "what commits wait for: the URL's option, and the defaults of server, database and roles",
    "oncekey's own commits use the URL's option; transactions of yours, which in_transaction "
    "joins, use the default. With `off` a crash takes the last acknowledged ones back",
    "remove synchronous_commit= from the URL; ALTER SYSTEM, ALTER DATABASE or ALTER ROLE ... RESET "
    "synchronous_commit",
)
STANDBYS: Final = Check(
    "postgres.standbys",
    "whether standbys have every commit before it is acknowledged, also those that were seen "
    "earlier and those that left a replication slot",
    "an asynchronous standby that is promoted lacks the last commits, and their operations run a "
    "second time, also if it was cut off long before; a synchronous one that is missing makes "
    "every commit wait",
    "set synchronous_standby_names so that commits wait for every standby; `oncekey guarantee "
    "--forget NAME` for one that is gone for good, after its slot was dropped; or add "
    "failover=never to the URL if no such standby is ever promoted",
)
CLOCK: Final = Check(
    "postgres.clock",
    "how far the server's clock is from this host's",
    "leases and keep count on the server's clock; one of the two is wrong, and when it is stepped "
    "leases end too early or too late",
    "let a time service slew both clocks (chrony, ntpd)",
)
CONNECTIONS: Final = Check(
    "postgres.connections",
    "whether a pool of pool_size fits into what server, database and role allow",
    "where no connection is free, operations are refused with StoreUnavailable",
    "lower pool_size, raise the limit, or use a pooler; count pool_size once per process",
)
TRANSACTIONS: Final = Check(
    "postgres.long-transactions",
    "whether a transaction has been open for more than an hour",
    "while it is open vacuum removes nothing, updates get slower, and the ring cannot be emptied",
    "end it: pg_terminate_backend(pid), ROLLBACK PREPARED; set idle_in_transaction_session_timeout",
)
AUTOVACUUM: Final = Check(
    "postgres.autovacuum",
    "whether autovacuum works, and how many transactions are left before the server stops",
    "without vacuum the tables grow and slow down, and in the end the server takes no commands",
    "set autovacuum = on and track_counts = on; ALTER TABLE ... RESET (autovacuum_enabled); VACUUM "
    "the tables named",
)
SERVER_CHECKS: Final = (
    VERSION, POOLER, PRIMARY, FSYNC, FULL_PAGE_WRITES, SYNCHRONOUS_COMMIT, STANDBYS, CLOCK,
    CONNECTIONS, TRANSACTIONS, AUTOVACUUM,
)  # fmt: skip


class ServerState(NamedTuple):
    """What was read.

    settings        the session's settings by name
    defaults        what a new session of this role has
    role_settings   (role, database, setting) for each synchronous_commit set for one of them
    server          its settings and standbys, as the store reads them
    unread          why the standbys that were seen earlier could not be read; empty if they were
    xid_age         transactions since the oldest row of the database
    """

    settings: Mapping[str, str]
    defaults: Mapping[str, str]
    role_settings: tuple[tuple[str, str, str], ...]
    is_standby: bool
    server: durability.Server
    unread: str
    xid_age: int
    clients: int
    role_limit: int
    database_limit: int


def read_server(session: CheckupSession) -> ServerState:
    rows = session.rows("settings")
    standby, has_settings, xid_age, clients, role_limit, database_limit = session.rows("state")[0]
    server, unread = _standbys_of(session, has_settings)
    return ServerState(
        settings={name: value for name, value, _ in rows},
        defaults={name: default for name, _, default in rows},
        role_settings=tuple((row[0], row[1], row[2]) for row in session.rows("role_settings")),
        is_standby=standby,
        server=server,
        unread=unread,
        xid_age=xid_age,
        clients=clients,
        role_limit=-1 if role_limit is None else role_limit,
        database_limit=database_limit,
    )


def _standbys_of(session: CheckupSession, has_settings: bool) -> tuple[durability.Server, str]:
    """The standbys, and why those that were seen earlier are not among them."""
    unread = "oncekey's tables are not there, or of an older release"
    if has_settings:
        rows = session.rows_or_reason("store_settings")
        if not isinstance(rows, str):
            return durability.parse_settings(rows[0][0]), ""
        unread = rows
    return durability.parse_server(session.rows("server")[0]), unread


def server_findings(session: CheckupSession, options: Options) -> Iterator[Finding]:
    """All checks of this module but the pooler's, which comes first."""
    server = read_server(session)
    yield version(server)
    yield primary(server)
    yield _switch(FSYNC, server.settings["fsync"])
    yield _switch(FULL_PAGE_WRITES, server.settings["full_page_writes"])
    yield synchronous_commit(server, options)
    yield standbys(server, options)
    yield clock(session)
    yield connections(server, options)
    yield transactions(session)


def pooler(found: Pooler, options: Options) -> Finding:
    if found is Pooler.STATEMENT:
        return POOLER.broken(f"{found.value}, which cannot work")
    if found is Pooler.TRANSACTION and not options.pooler:
        return POOLER.broken(f"{found.value}, and the URL does not say pooler=true")
    if found is Pooler.UNKNOWN and not options.pooler:
        return POOLER.info(f"not checked: {found.value}")
    return POOLER.ok(f"{found.value}, pooler={str(options.pooler).lower()}")


def version(server: ServerState) -> Finding:
    number = int(server.settings["server_version_num"])
    what = f"PostgreSQL {number // 10_000}.{number % 10_000}"
    return VERSION.ok(what) if number >= SERVER_VERSION_MIN else VERSION.broken(what)


def primary(server: ServerState) -> Finding:
    if server.is_standby:
        return PRIMARY.broken("the server is a read-only standby")
    if server.defaults["default_transaction_read_only"] == "on":
        return PRIMARY.broken("default_transaction_read_only is on for this role and database")
    return PRIMARY.ok("a primary that takes writes")


def _switch(check: Check, value: str) -> Finding:
    name = check.name.partition(".")[2].replace("-", "_")
    if value == "on":
        return check.ok(f"{name} is on")
    return check.broken(f"{name} is {value}: the guarantee is best effort")


def synchronous_commit(server: ServerState, options: Options) -> Finding:
    if options.synchronous_commit == "off":
        return SYNCHRONOUS_COMMIT.broken(
            "the URL says synchronous_commit=off: the guarantee is best effort"
        )
    weak = ("off", "local") if server.settings["synchronous_standby_names"].strip() else ("off",)
    found = []
    default = server.defaults["synchronous_commit"]
    if default in weak:
        found.append(f"{default} for new sessions of this role")
    for role, database, setting in server.role_settings:
        value = setting.partition("=")[2]
        if value in weak:
            found.append(f"{value} for {role} in {database}")
    if found and options.allows_caller_transactions:
        return SYNCHRONOUS_COMMIT.warning(f"synchronous_commit is {', '.join(found)}")
    return SYNCHRONOUS_COMMIT.ok(
        f"synchronous_commit is {options.synchronous_commit} for oncekey, {default} by default"
    )


def standbys(state: ServerState, options: Options) -> Finding:
    if state.is_standby:
        return STANDBYS.info("not checked: the server is a standby itself")
    names = state.settings["synchronous_standby_names"].strip()
    server = state.server
    attached = [str(one) for one in server.standbys.attached]
    waits = bool(names) and options.waits_for_standbys
    if waits and not attached:
        return STANDBYS.broken(
            f"synchronous_standby_names is {names!r} and no standby is attached: commits wait"
        )
    sightings = ReplicaMemory().observe(server.seen(), server.remembered)
    fault = durability.standby_fault(server, options.synchronous_commit, sightings)
    if fault and options.failover != "never":
        return STANDBYS.broken(f"{fault}. The guarantee is best effort")
    if state.unread:
        return STANDBYS.info(
            f"none is attached that may lack a commit; which were seen earlier was not checked: "
            f"{state.unread}"
        )
    known = [str(sighting) for sighting in sightings]
    if fault:
        return STANDBYS.ok(
            f"{'; '.join(known)}; the URL says that none which may lack a commit is promoted"
        )
    if known:
        return STANDBYS.ok(f"{'; '.join(known)}; commits wait for {names!r}")
    return STANDBYS.ok("no standby is attached, and none was seen")


def clock(session: CheckupSession) -> Finding:
    before = time.time_ns() // 1_000
    theirs = session.rows("clock")[0][0]
    return clock_skew(theirs, before, time.time_ns() // 1_000)


def clock_skew(theirs: int, before: int, after: int) -> Finding:
    """The server read its clock between `before` and `after` on ours."""
    if theirs > after:
        skew = theirs - after
    elif theirs < before:
        skew = theirs - before
    else:
        skew = 0
    if abs(skew) > CLOCK_SKEW_US:
        direction = "ahead of" if skew > 0 else "behind"
        seconds = abs(skew) / 1_000_000
        return CLOCK.warning(f"the server's clock is {seconds:,.1f} s {direction} this host's")
    return CLOCK.ok(f"within {CLOCK_SKEW_US // 1_000_000} s of this host's")


def connections(server: ServerState, options: Options) -> Finding:
    settings = server.settings
    reserved = int(settings["superuser_reserved_connections"])
    reserved += int(settings.get("reserved_connections", "0"))
    free = int(settings["max_connections"]) - reserved - server.clients
    if free < options.pool_size:
        return CONNECTIONS.warning(
            f"{max(0, free)} of {settings['max_connections']} connections are free, and a pool of "
            f"this store opens up to {options.pool_size}"
        )
    for limit, whose in ((server.role_limit, "role"), (server.database_limit, "database")):
        if 0 <= limit < options.pool_size:
            return CONNECTIONS.warning(
                f"the {whose} may have {limit} connections, and a pool of this store opens up to "
                f"{options.pool_size}"
            )
    return CONNECTIONS.ok(f"{free} of {settings['max_connections']} are free")


def transactions(session: CheckupSession) -> Finding:
    rows = session.rows("transactions", (LONG_TRANSACTION_SECONDS,))
    if not rows:
        return TRANSACTIONS.ok("none that this role can see")
    each = (f"{who} for {seconds // 60} minutes" for who, seconds in rows)
    return TRANSACTIONS.warning(f"open: {', '.join(each)}")


def vacuum_settings(server: ServerState) -> Finding | None:
    """A finding if autovacuum does not work at all, or if it is nearly too late."""
    off = [name for name in ("autovacuum", "track_counts") if server.settings[name] != "on"]
    if server.xid_age > XID_LIMIT * 3 // 4:
        return AUTOVACUUM.broken(
            f"the database's oldest row is {server.xid_age:,} transactions old; the server stops "
            f"at about {XID_LIMIT:,}"
        )
    if off:
        return AUTOVACUUM.warning(f"{' and '.join(off)}: off")
    if server.xid_age > 2 * int(server.settings["autovacuum_freeze_max_age"]):
        return AUTOVACUUM.warning(
            f"the database's oldest row is {server.xid_age:,} transactions old: autovacuum cannot "
            "freeze it"
        )
    return None
