"""A small ring with a settable clock, and sessions whose commits can be delayed."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tests.support.explorer.postgres_race_schema import Database, Session, Setup
from tests.support.servers.processes import wait_until

from oncekey.core.commands import (
    Claimed,
    Command,
    Done,
    Finish,
    Release,
    Renew,
    Reply,
    SaveStep,
)
from oncekey.core.record import Record, State
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.queries import Layout
from oncekey.stores.postgres.statements import Statement
from oncekey.testing.contract.store_case import claim, token

T = TypeVar("T")

SECOND = 1_000_000
SLOTS = 6
RING = Layout("ring", SLOTS, SECOND)
LEASE, KEEP, AUDIT = SECOND // 2, SECOND, SECOND // 2


class Key:
    """A claimed key, and its owner's commands."""

    def __init__(self, id: bytes, owner: bytes, fence: int) -> None:
        self.id = id
        self.owner = owner
        self.fence = fence

    def finish(self, body: bytes = b"body") -> Finish:
        return Finish(self.id, self.owner, self.fence, State.SUCCEEDED, body)

    def renew(self, lease: int = LEASE) -> Renew:
        return Renew(self.id, self.owner, self.fence, lease)

    def verbs(self) -> list[Command]:
        """The commands that only its owner may send."""
        step = SaveStep(self.id, self.owner, self.fence, "pay", False, b"intent")
        return [self.finish(), self.renew(), step, Release(self.id, self.owner, self.fence)]


class Ring:
    """The store's programs on a ring of six slots of a second each; it begins in slot 0."""

    def __init__(self, url: str, *, guard: bool = True) -> None:
        self.database = Database(url, Setup(RING, guard=guard))
        self.session = self.database.connect()
        self._threads = ThreadPoolExecutor(4)
        self._opened: list[Session] = []
        self.start()

    def start(self) -> None:
        """Empty the ring and set the clock to the beginning of slot 0."""
        self.database.reset(None)
        self.now = 1_000_000 * SLOTS * SECOND

    def close(self) -> None:
        self._threads.shutdown()
        for session in (*self._opened, self.session):
            session.close()
        self.database.close()

    def connect(self) -> Session:
        session = self.database.connect()
        self._opened.append(session)
        return session

    @property
    def program(self) -> Program:
        return self.database.setup.program(lambda: self.now)

    # --- whole programs, every statement committed --------------------------------------------

    def run(self, steps: Generator[Statement, Any, T], session: Session | None = None) -> T:
        line = session or self.session
        try:
            statement = next(steps)
            while True:
                statement = steps.send(line.run(statement))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def apply(self, *commands: Command) -> list[Reply]:
        return self.run(self.program.apply(commands))

    def sweep(self) -> int:
        return self.run(self.program.sweep(1_000))

    def sweep_all(self) -> int:
        """Sweep until nothing is due at this time."""
        removed = 0
        while count := self.sweep():
            removed += count
        return removed

    def in_thread(self, steps: Generator[Statement, Any, T]) -> tuple[Future[T], Session]:
        """Run a program on a connection of its own, because it may have to wait."""
        session = self.connect()
        return self._threads.submit(self.run, steps, session), session

    def wait_until_blocked(self, future: Future[Any], session: Session) -> None:
        def blocked() -> bool:
            assert not future.done(), f"nothing stopped it: {future.result()}"
            return self.database.blocks(session)

        wait_until(blocked, "a statement waits for a lock")

    # --- a statement whose commit comes later -------------------------------------------------

    def begin_sweep(self) -> tuple[int, Session]:
        """Rotate without committing; returns how many records it removed."""
        session = self.connect()
        shape = (RING.slots, RING.period, 1_000)
        rows, _ = session.begin(Statement("rotate", (self.now, *shape)))
        return rows[0][0], session

    def begin(self, command: Command) -> tuple[Sequence[Any], Session]:
        """Run a command up to its last statement, without committing that."""
        session = self.connect()
        steps = self.program.apply([command])
        statement = next(steps)
        while True:
            rows, is_open = session.begin(statement)
            if is_open:
                return rows, session
            statement = steps.send(rows)

    # --- keys ---------------------------------------------------------------------------------

    def claimed(self, **changes: Any) -> Key:
        terms = {"lease": LEASE, "keep": KEEP, "audit": AUDIT, "keep_unknown": KEEP, **changes}
        id, owner = token("id"), token("own")
        (reply,) = self.apply(claim(id, owner, **terms))
        assert isinstance(reply, Claimed)
        return Key(id, owner, reply.fence)

    def finished(self, **changes: Any) -> Key:
        key = self.claimed(**changes)
        assert self.apply(key.finish()) == [Done()]
        return key

    def garbage(self) -> Key:
        """A record whose audit ends before the next slot begins."""
        return self.finished(lease=1, keep=1, audit=0)

    def due(self) -> tuple[Key, Key]:
        """A live record in the slot that is to be filled next, and garbage beside it."""
        garbage = self.garbage()
        key = self.claimed(lease=SECOND, keep=SECOND, audit=SECOND)
        for _ in range(SLOTS - 1):
            self.wait(SECOND)
            assert self.apply(key.renew(SECOND + 1)) == [Done()]
        assert self.slot_of(key) == 0
        return key, garbage

    def wait(self, us: int) -> None:
        self.now += us

    # --- what is where ------------------------------------------------------------------------

    def record(self, id: bytes) -> Record | None:
        found = self.database.records(id)
        assert len(found) < 2, f"the key has {len(found)} records (I1)"
        return found[0].record if found else None

    def slot_of(self, key: Key) -> int | None:
        rows = self.ask("SELECT slot FROM {schema}.records WHERE id = %s", key.id.hex())
        return rows[0][0] if rows else None

    def pages(self, slot: int) -> int:
        rows = self.ask(f"SELECT pg_relation_size('{{schema}}.records_{slot}') / 8192")
        return int(rows[0][0])

    def ask(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        text = sql.replace("{schema}", RING.quoted)
        return self.session.connection.execute(text.encode(), values or None).fetchall()
