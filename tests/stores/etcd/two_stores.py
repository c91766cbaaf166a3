"""Two stores on one prefix of the shared cluster: two processes, as far as etcd can tell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.support.etcd_stores import etcd

from oncekey.core.commands import Claimed, Command, Reply
from oncekey.stores.etcd.cluster_store import ClusterStore
from oncekey.stores.etcd.etcd_store import EtcdStore
from oncekey.testing.contract.store_case import claim
from oncekey.testing.fake_clock import FakeClock

T = TypeVar("T")

_numbers = itertools.count(1)


def fresh_prefix() -> str:
    return f"two-{next(_numbers)}"


class Process:
    """One store object with a clock of its own, and what tests look at in it."""

    def __init__(self, prefix: str, clock: FakeClock | None = None, **options: Any) -> None:
        if clock is not None:
            options["clock"] = clock.wall
        self.store = EtcdStore(etcd().addresses.split(","), prefix=prefix, **options)
        self.calls: list[str] = []
        self.run(self._count_calls)

    def run(self, work: Callable[[ClusterStore], Coroutine[Any, Any, T]]) -> T:
        """Run something on the store's event loop."""
        return self.store._loop.run(self.store._on_loop(work))

    async def _count_calls(self, cluster: ClusterStore) -> None:
        real = cluster.members.call

        async def call(name: str, request: Any, end: float) -> Any:
            self.calls.append(name)
            return await real(name, request, end)

        cluster.members.call = call  # type: ignore[method-assign]

    def send(self, command: Command) -> Reply:
        (reply,) = self.store.apply([command])
        return reply

    def let_lapse(self) -> None:
        """Do the background work of claims that were not renewed."""
        self.run(lambda cluster: cluster.let_lapse())

    def end_sessions(self) -> None:
        """Let etcd end the sessions, as it does after a process has died."""
        self.run(_revoke_all)

    def close(self) -> None:
        self.store.close()


async def _revoke_all(cluster: ClusterStore) -> None:
    from aetcd import rpc

    for number in list(cluster.sessions._by_number):
        request = rpc.LeaseRevokeRequest(ID=number)
        await cluster.members.call("LeaseRevoke", request, cluster.members.deadline())


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
