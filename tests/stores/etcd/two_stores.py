"""Two stores on one prefix of the shared cluster: two processes, as far as etcd can tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aetcd import rpc
from tests.support.etcd_stores import etcd
from tests.support.servers import processes

from oncekey.core.commands import Claimed, Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.stores.etcd.etcd_store import EtcdStore
from oncekey.stores.etcd.held_claims import Reading
from oncekey.stores.etcd.shared_store import SharedStore
from oncekey.testing.contract.store_case import claim
from oncekey.testing.fake_clock import FakeClock

T = TypeVar("T")


def fresh_prefix() -> str:
    """A prefix that no other process of the run has, which may share the cluster."""
    return processes.fresh_name("two")


class Process:
    """One store object with a clock of its own, and what tests look at in it."""

    def __init__(self, prefix: str, clock: FakeClock | None = None, **options: Any) -> None:
        if clock is not None:
            options["clock"] = clock.wall
        self.store = EtcdStore(etcd().addresses.split(","), prefix=prefix, **options)
        self.calls: list[str] = []
        self.run(self._count_calls)
        if clock is not None:
            self.run(self._rest)

    def run(self, work: Callable[[SharedStore], Coroutine[Any, Any, T]]) -> T:
        """Run something on the store's event loop."""
        return self.store._loop.run(self.store._on_loop(work))

    async def _count_calls(self, cluster: SharedStore) -> None:
        real = cluster.members.call

        async def call(name: str, request: Any, end: float) -> Any:
            self.calls.append(name)
            return await real(name, request, end)

        cluster.members.call = call  # type: ignore[method-assign]

    @staticmethod
    async def _rest(cluster: SharedStore) -> None:
        """Put a task that does nothing in the place of the background work, which follows the real
        clock: it would come in between two lines of a test. Tests call its parts by name."""
        cluster._beats = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]

    def send(self, command: Command) -> Reply:
        (reply,) = self.store.apply([command])
        return reply

    def set_wall_clock(self, by: int) -> None:
        """The host's wall clock is set, and the time that passes goes on as before."""

        async def set_it(cluster: SharedStore) -> None:
            real = cluster._clock.read

            def read() -> Reading:
                now, elapsed = real()
                return Reading(now + by, elapsed)

            cluster._clock.read = read  # type: ignore[method-assign]

        self.run(set_it)

    def let_lapse(self) -> None:
        """Do the background work of claims that were not renewed."""
        self.run(lambda cluster: cluster.let_lapse())

    def sessions(self) -> list[int]:
        """The sessions that the process keeps alive."""
        assert self.store._cluster is not None
        return list(self.store._cluster.sessions._by_number)

    def keep_alive(self) -> None:
        """Do the background work of sessions."""
        self.run(lambda cluster: cluster.sessions.keep_alive(cluster.held.of_session))

    def end_sessions(self) -> None:
        """Let etcd end the sessions, as it does after a process has died."""
        for number in self.sessions():
            self.end_session(number)

    def end_session(self, number: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=number)
        self.run(lambda cluster: cluster.members.call("LeaseRevoke", request, time.monotonic() + 5))

    def lose_next_reply(self, after: int = 0) -> None:
        """The next request, or one `after` it, is carried out, and its caller is told nothing."""
        self._fail_next([], after, carry_out=True)

    def hold_back_next_request(self) -> list[Any]:
        """The next request is not carried out, and its caller is told nothing. Returns the list to
        which it will be added."""
        requests: list[Any] = []
        self._fail_next(requests, 0, carry_out=False)
        return requests

    def _fail_next(self, requests: list[Any], after: int, *, carry_out: bool) -> None:
        async def prepare(cluster: SharedStore) -> None:
            real = cluster.members.call

            async def call(name: str, request: Any, end: float) -> Any:
                nonlocal after
                after -= 1
                if after >= 0:
                    return await real(name, request, end)
                cluster.members.call = real  # type: ignore[method-assign]
                requests.append(request)
                if carry_out:
                    await real(name, request, end)
                raise StoreUnavailable("the reply was lost", ambiguous=True)

            cluster.members.call = call  # type: ignore[method-assign]

        self.run(prepare)

    def close(self) -> None:
        self.store.close()


class Pair:
    """Two processes on one store, each with a clock of its own."""

    def __init__(self) -> None:
        prefix = fresh_prefix()
        self.clock, self.other_clock = FakeClock(), FakeClock()
        self.one = Process(prefix, self.clock)
        self.other = Process(prefix, self.other_clock)

    def advance(self, us: int) -> None:
        self.clock.advance(us)
        self.other_clock.advance(us)

    def close(self) -> None:
        self.one.close()
        self.other.close()


def claimed(process: Process, id: bytes, owner: bytes, **changes: object) -> Claimed:
    reply = process.send(claim(id, owner, **changes))
    assert isinstance(reply, Claimed), reply
    return reply
