"""The options of a PostgreSQL store: their defaults, checks, and the settings derived from them.

This module also splits a URL into our options and the driver's part. It opens nothing and knows no
driver.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.durability import FAILOVER, SYNCHRONOUS_COMMIT
from oncekey.stores.postgres.locked_rows import BATCH_LOCK_US
from oncekey.stores.postgres.program import Program, TestClock
from oncekey.stores.postgres.queries import Layout
from oncekey.stores.server_watch import MARGIN_SECONDS, STOP_SECONDS

CLAIMS: Final = ("insert", "row_lock", "advisory_lock", "portable")
RETENTIONS: Final = ("plain", "ring")
SCHEMA_MAX_BYTES: Final = 63
SCHEMA_WITHOUT: Final = "'$%{}\\"
RING_SLOTS_MIN: Final = 4
RING_SLOTS_MAX: Final = 64
POOL_SIZE_MAX: Final = 64
# The planner methods that read a whole table; see sql/shared/0002_functions.sql. A bitmap scan does
# so if only the first rows in an index's order are needed: it collects all rows first.
NO_SCANS: Final = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")
# As there is one good plan for each statement, none is planned anew for every batch.
PLANNER: Final = {**dict.fromkeys(NO_SCANS, "off"), "plan_cache_mode": "force_generic_plan"}
TIMEOUT_MAX_MS: Final = 2**31 - 1  # the server's own limit

CALL_GRACE_US: Final = int((MARGIN_SECONDS + STOP_SECONDS) * 1_000_000)

_TRUE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a store works; every value has a default.

    schema              the schema of its tables
    claim               how a key is claimed: insert, row_lock, advisory_lock or portable
    retention           plain: one table, which is swept; ring: partitions, each emptied as a whole
    ring_slots          how many partitions the ring has
    ring_period         for how long each of them is filled
    transactional       True if in_transaction is used on this schema; False saves a lock per key
    migrate             True to bring the tables up to date at first use
    pooler              True if the address is a pooler in transaction mode (PgBouncer)
    statement_timeout   how long each of our statements may take
    lock_timeout        how long a statement may wait for a lock
    pool_size           how many connections a store of this process opens at most
    pool_timeout        how long to wait for one of them
    call_timeout        how long a call may take in all, including connecting and cancelling; 1.5
                        seconds more than statement_timeout by default
    synchronous_commit  what our commits wait for
    guarantee_interval  how old the reading of the server's settings may be when a claim is made
    failover            never: no asynchronous standby is ever promoted
    """

    schema: str = "oncekey"
    claim: str = "insert"
    retention: str = "plain"
    ring_slots: int = 12
    ring_period: Duration = "1d"
    transactional: bool = True
    migrate: bool = True
    pooler: bool = False
    statement_timeout: Duration = "5s"
    lock_timeout: Duration = "2s"
    pool_size: int = 4
    pool_timeout: Duration = "5s"
    call_timeout: Duration | None = None
    synchronous_commit: str = "on"
    failover: str = "auto"
    guarantee_interval: Duration = "5s"
    clock: TestClock | None = None

    def __post_init__(self) -> None:
        for name in ("schema", "claim", "retention", "synchronous_commit", "failover"):
            if not isinstance(getattr(self, name), str):
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be text")
        for name in ("transactional", "migrate", "pooler"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be True or False")
        self._check_schema()
        for name, known in (
            ("claim", CLAIMS),
            ("retention", RETENTIONS),
            ("synchronous_commit", SYNCHRONOUS_COMMIT),
            ("failover", FAILOVER),
        ):
            if getattr(self, name) not in known:
                raise ConfigurationError(
                    f"{name}={getattr(self, name)!r} is not known; choose {', '.join(known)}"
                )
        self._whole("ring_slots", RING_SLOTS_MIN, RING_SLOTS_MAX)
        self._whole("pool_size", 1, POOL_SIZE_MAX)
        if self.retention == "ring" and self.claim == "portable":
            raise ConfigurationError(
                "retention='ring' needs advisory locks, which claim='portable' does without; "
                "choose another claim, or plain retention"
            )
        timeouts = ("statement_timeout", "lock_timeout", "pool_timeout", "call_timeout")
        for name in (*timeouts, "ring_period", "guarantee_interval"):
            if getattr(self, name) is None:
                continue
            if self.us(name) < 1_000:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be 1ms or longer")
            if name.endswith("_timeout") and self.us(name) // 1_000 > TIMEOUT_MAX_MS:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be under 24 days")

    def _check_schema(self) -> None:
        """The schema's name is written into SQL, also between quotes and as a format() pattern."""
        if not 0 < len(self.schema.encode()) <= SCHEMA_MAX_BYTES:
            raise ConfigurationError(
                f"schema={self.schema!r} must have 1 to {SCHEMA_MAX_BYTES} bytes"
            )
        if not self.schema.isprintable() or any(c in self.schema for c in SCHEMA_WITHOUT):
            raise ConfigurationError(
                f"schema={self.schema!r} must do without {' '.join(SCHEMA_WITHOUT)} and control "
                "characters"
            )
        if self.schema.startswith("pg_") or self.schema == "information_schema":
            raise ConfigurationError(f"schema={self.schema!r} is PostgreSQL's own")

    def _whole(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or not least <= value <= most:
            raise ConfigurationError(f"{name}={value!r} must be a number from {least} to {most}")

    def us(self, name: str) -> int:
        """One of the durations in microseconds."""
        return microseconds(getattr(self, name), name=name)

    @property
    def reply_timeout_seconds(self) -> float:
        """How long the reply to a statement is awaited."""
        return self.us("statement_timeout") / 1_000_000 + MARGIN_SECONDS

    @property
    def call_us(self) -> int:
        """How long a call may take in all."""
        if self.call_timeout is not None:
            return self.us("call_timeout")
        return self.us("statement_timeout") + CALL_GRACE_US

    @property
    def layout(self) -> Layout:
        if self.retention == "plain":
            return Layout(self.schema)
        return Layout(self.schema, self.ring_slots, self.us("ring_period"))

    @property
    def allows_caller_transactions(self) -> bool:
        """True if callers' transactions may hold keys."""
        return self.transactional and self.claim != "portable"

    @property
    def waits_for_standbys(self) -> bool:
        """True if our commits wait for synchronous standbys, if there are any."""
        return self.synchronous_commit in ("on", "remote_apply")

    def program(self) -> Program:
        layout = self.layout
        # On a ring, moving a record takes its key's lock as well.
        guard = self.allows_caller_transactions or layout.is_ring
        return Program(
            layout,
            claim=self.claim,
            guard=guard,
            clock=self.clock,
            reply_timeout=self.reply_timeout_seconds,
            settings_interval=self.us("guarantee_interval") / 1_000_000,
            lock_us=min(self.us("lock_timeout"), BATCH_LOCK_US),
        )

    @property
    def session_settings(self) -> dict[str, str]:
        """The settings of all our transactions."""
        return {
            "statement_timeout": f"{self.us('statement_timeout') // 1_000}",
            "lock_timeout": f"{self.us('lock_timeout') // 1_000}",
            "synchronous_commit": self.synchronous_commit,
            # If no standby has confirmed a commit, the server sends only a warning.
            "client_min_messages": "warning",
        }

    @property
    def planner_settings(self) -> dict[str, str]:
        """The settings of our own sessions. A plan that was made while the table was small is
        cached, and must not be one that reads the whole table."""
        return {"default_transaction_isolation": "read committed", **PLANNER}

    @property
    def local_settings(self) -> list[str]:
        """These settings as statements, for connections whose session belongs to somebody else.
        They do not change whether a transaction is read-only; that is the operator's choice."""
        settings = {**self.session_settings, **PLANNER}.items()
        each = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings)
        return ["SET TRANSACTION ISOLATION LEVEL READ COMMITTED", f"SELECT {each}"]


def split_url(url: str) -> tuple[str, Options]:
    """The driver's address and our options. Other parameters of the URL are the driver's."""
    parts = urlsplit(url)
    known = {field.name: field for field in fields(Options) if field.name != "clock"}
    ours: dict[str, Any] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            theirs.append((name, value))
            continue
        if name in ours:
            raise ConfigurationError(f"the option {name!r} is given twice in the store's URL")
        ours[name] = _typed(name, value, known[name].default)
    # libpq does not decode a plus sign, so a space must not be encoded as one.
    rest = urlencode(theirs, quote_via=quote)
    return urlunsplit(parts._replace(query=rest)), Options(**ours)


def _typed(name: str, value: str, default: object) -> Any:
    if isinstance(default, bool):
        if value.lower() not in _TRUE:
            raise ConfigurationError(f"{name}={value!r} must be true or false")
        return _TRUE[value.lower()]
    if isinstance(default, int):
        if not value.isdecimal():
            raise ConfigurationError(f"{name}={value!r} must be a number")
        return int(value)
    return value
