"""The base of the engine contract: sync or async engines on one store with one clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ClassVar
from weakref import WeakSet

import pytest

from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Claimed, Done, SaveStep
from oncekey.core.events import Event, EventKind
from oncekey.core.identity import Identities, Identity
from oncekey.core.policy import Policy
from oncekey.core.record import Record
from oncekey.core.step_format import pack_step
from oncekey.core.store import AsyncStore, Store
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.testing.contract.store_case import (
    LEASE,
    ContractBase,
    HeldClaim,
    StoreCase,
    claim,
    token,
)
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, FaultyStore, Script
from oncekey.testing.sync_facade import LoopThread, SyncOnce, is_async

TIMEOUT_SECONDS = 120.0  # only what will never come takes so long
# `recover` is believed at once, unless a test says otherwise.
POLICY = Policy(lease="30s", keep="1h", audit="2h", recover_grace="0s")
CALLERS = 80

Engine = Once | SyncOnce
Faulty = FaultyStore | AsyncFaultyStore


class Body:
    """A body that counts its runs and returns a value or raises an error."""

    def __init__(self, value: Any = None, *, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error
        self.runs = 0
        self.numbers: list[int] = []
        self.fences: list[int] = []

    def __call__(self, attempt: Any) -> Any:
        self.runs += 1
        self.numbers.append(attempt.number)
        self.fences.append(attempt.fence)
        if self.error is not None:
            raise self.error
        return self.value


class HeldBody(Body):
    """A body that waits until the test sets `go`, or has failed."""

    all: ClassVar[WeakSet[HeldBody]] = WeakSet()

    def __init__(self, value: Any = None, *, error: BaseException | None = None) -> None:
        super().__init__(value, error=error)
        self.inside = threading.Event()
        self.go = threading.Event()
        self.attempt: Any = None
        self.all.add(self)

    def __call__(self, attempt: Any) -> Any:
        self.attempt = attempt
        self.inside.set()
        assert self.go.wait(TIMEOUT_SECONDS), "the body was never let go"
        return super().__call__(attempt)

    def wait_inside(self) -> None:
        assert self.inside.wait(TIMEOUT_SECONDS), "the body was never entered"


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt, which would end the test run itself."""


class EngineCase(StoreCase):
    """Makes engines, runs bodies in threads, and makes dead owners."""

    def __init__(
        self,
        sync_store: Store,
        raw: Store | AsyncStore,
        clock: FakeClock,
        pass_time: Callable[[FakeClock, int], None],
        loop: Callable[[], LoopThread],
    ) -> None:
        super().__init__(sync_store, clock, pass_time)
        self.raw = raw
        self.asyncio = is_async(raw)
        self._loop = loop
        self._pool = ThreadPoolExecutor(CALLERS)
        self._engines: list[Engine] = []
        self._started: list[Future[Any]] = []

    def once(self, store: Faulty | None = None, **options: Any) -> Engine:
        """A new engine on the store (or on a faulty one around it)."""
        chosen: Any = self.raw if store is None else store
        options = {"clock": self.clock, "policy": POLICY, **options}
        engine: Engine
        if self.asyncio:
            engine = SyncOnce(AsyncOnce(chosen, **options), self._loop())
        else:
            engine = Once(chosen, **options)
        self._engines.append(engine)
        return engine

    def faulty(self, script: Script | None = None) -> Faulty:
        """The store wrapped in a FaultyStore or AsyncFaultyStore."""
        raw: Any = self.raw
        return AsyncFaultyStore(raw, script) if self.asyncio else FaultyStore(raw, script)

    def start(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """Calls `fn` in a thread."""
        future = self._pool.submit(fn, *args, **options)
        self._started.append(future)
        return future

    def close(self) -> None:
        # After a failed test some bodies may still be held, and some threads sleep on the clock,
        # which is moved until none does.
        for body in list(HeldBody.all):
            body.go.set()
        for _ in range(1_000):
            if all(future.done() for future in self._started):
                break
            self.clock.advance(LEASE)
            wait(self._started, timeout=0.01)
        self._pool.shutdown()
        for engine in self._engines:
            engine.close()

    # --- keys ---------------------------------------------------------------------------------

    def identity(self, key: str, *, operation: str = "op", scope: str = "") -> Identity:
        return Identities().identify(scope, operation, key)

    def identity_child(self, key: str, name: str) -> str:
        return Identities().child_key(self.identity(key), name)

    def record_of(self, key: str, **names: str) -> Record:
        return self.record(self.identity(key, **names).id)

    def hold(self, key: str, *, request: Any = None, **changes: Any) -> HeldClaim:
        """Another owner claims the key directly on the store, and stays silent."""
        id, owner = self.identity(key).id, token("own")
        fingerprint = Identities().fingerprint(request)
        reply = self.expect(Claimed, claim(id, owner, fingerprint=fingerprint, **changes))
        return HeldClaim(self, id, owner, reply.fence)

    def dead_owner(
        self, key: str, *, steps: dict[str, Any] | None = None, **changes: Any
    ) -> HeldClaim:
        """The same, and its lease is over; `steps` are the steps it had finished."""
        held = self.hold(key, **changes)
        for name, value in (steps or {}).items():
            body = pack_step({}, pack_value(JSON, value))
            self.expect(Done, SaveStep(held.id, held.owner, held.fence, name, True, body))
        self.wait(LEASE)
        return held

    # --- time ---------------------------------------------------------------------------------

    def next_beat(self) -> None:
        """Lets a third of the lease pass, once the heartbeat waits for it."""
        self.clock.wait_until_due(LEASE // 3)
        self.clock.advance(LEASE // 3)

    def events_of(self, engine: Engine) -> list[EventKind]:
        """A list that fills with the kinds of the engine's events."""
        kinds: list[EventKind] = []

        def record(event: Event) -> None:
            kinds.append(event.kind)

        engine.subscribe(record)
        return kinds


def wait_until_true(condition: Callable[[], bool]) -> None:
    """Polls a condition until it holds; another thread makes it true."""
    pause = threading.Event()
    for _ in range(int(TIMEOUT_SECONDS * 1_000)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("the condition never held")


class EngineCaseBase(ContractBase):
    """Adds the `engines` fixture."""

    @pytest.fixture
    def engines(
        self,
        sync_store: Store,
        raw_store: Store | AsyncStore,
        clock: FakeClock,
        request: pytest.FixtureRequest,
    ) -> Iterator[EngineCase]:
        engines = EngineCase(
            sync_store, raw_store, clock, self.pass_time, lambda: request.getfixturevalue("loop")
        )
        yield engines
        engines.close()
