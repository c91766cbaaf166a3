"""Three etcd members: oncekey beside nested transactions that the same client library sends.

The raw form claims many keys with one request of nested transactions, each of which creates a
record and an index entry if the record is absent. Another request finishes them: each nested
transaction writes the outcome and the entry, both with an etcd lease that removes them one day, if
the record is still the one that was written. Two such requests are in flight. These are the
transactions of the store, without anything around them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from aetcd import rpc
from tests.support.servers.etcd_cluster import EtcdCluster, EtcdMember

from bench.figures import Ratio, Report, in_turns
from bench.postgres import oncekey_runs
from bench.postgres.load import SECONDS, WARM_UP_SECONDS, Calls
from bench.stores.processor_time import Meter, Slice
from bench.stores.side_by_side import Subject

CALLERS = 64
IN_FLIGHT = 2
ROUNDS = 5
RAW_WANTED = 0.5
RECORD = bytes(160)
BODY = b'\x01{"id":"ch_1"}'
_OURS = f"oncekey, {CALLERS} tasks"
_RAW = f"nested transactions, {IN_FLIGHT} requests of {CALLERS // IN_FLIGHT}"
_RAW_TWICE = f"nested transactions, {IN_FLIGHT} requests of {CALLERS}"


class _DirectMember(EtcdMember):
    """A member that the others reach directly. The tests' proxies work in this process, and would
    compete with the client for its interpreter."""

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self._peer_port}"


@contextmanager
def started() -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(3)
    cluster.members = [_DirectMember(cluster, None) for _ in cluster.members]
    with cluster:
        yield cluster


def subject(cluster: EtcdCluster) -> Subject:
    return Subject(
        "etcd, three members",
        cluster.url(),
        [member.port for member in cluster.members],
        lambda: [member.pid for member in cluster.members],
        lambda: _stored(cluster.leader()),
    )


def _stored(member: EtcdMember) -> int:
    """Bytes in use once past revisions are removed, as the servers do by themselves every hour."""
    asyncio.run(_compact(member.address))
    return int(member.status()["dbSizeInUse"])


async def _compact(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.KVStub(channel)
        read = await stub.Range(rpc.RangeRequest(key=b"none"))
        revision = read.header.revision
        await stub.Compact(rpc.CompactionRequest(revision=revision, physical=True))


def report(cluster: EtcdCluster) -> Report:
    address = cluster.leader().address
    meter = Meter(lambda: [member.pid for member in cluster.members])
    contestants: dict[str, Slice] = {
        _RAW: lambda _: raw_lifecycles(address, CALLERS // IN_FLIGHT),
        _RAW_TWICE: lambda _: raw_lifecycles(address, CALLERS),
        "oncekey, 1 task": lambda _: oncekey_runs.in_tasks(cluster.url(), 1),
        _OURS: lambda _: oncekey_runs.in_tasks(cluster.url(), CALLERS),
        f"oncekey, {CALLERS} threads": lambda _: oncekey_runs.in_threads(cluster.url(), CALLERS),
    }
    timings = in_turns(meter.watched(contestants), ROUNDS, lines=True)
    version = cluster.leader().status()["version"]
    return Report(
        f"etcd {version}, three members: a claim and a finish",
        list(timings.values()),
        [
            Ratio(f"{_OURS} against {_RAW}", timings[_RAW].us / timings[_OURS].us, RAW_WANTED),
            Ratio(f"{_OURS} against {_RAW_TWICE}", timings[_RAW_TWICE].us / timings[_OURS].us),
            meter.against(_OURS, _RAW),
            *meter.ratios(),
        ],
    )


def raw_lifecycles(address: str, keys: int) -> float:
    """Microseconds per lifecycle, with IN_FLIGHT requests of this many keys each."""

    async def measure() -> float:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = rpc.KVStub(channel)
            granted = await rpc.LeaseStub(channel).LeaseGrant(rpc.LeaseGrantRequest(TTL=86_400))
            await _during(stub, granted.ID, keys, WARM_UP_SECONDS)
            return await _during(stub, granted.ID, keys, SECONDS)

    return asyncio.run(measure())


async def _during(stub: Any, lease: int, keys: int, seconds: float) -> float:
    start = time.perf_counter()
    ends = start + seconds

    async def repeat() -> int:
        done = 0
        while time.perf_counter() < ends:
            await _lifecycle(stub, lease, [os.urandom(16) for _ in range(keys)])
            done += keys
        return done

    done = sum(await asyncio.gather(*(repeat() for _ in range(IN_FLIGHT))))
    Calls.made += done
    return (time.perf_counter() - start) / done * 1_000_000


async def _lifecycle(stub: Any, lease: int, ids: list[bytes]) -> None:
    claims = [_write(id, 0, RECORD, 0) for id in ids]
    claimed = await stub.Txn(rpc.TxnRequest(success=claims))
    assert all(one.response_txn.succeeded for one in claimed.responses)
    revision = claimed.header.revision
    finishes = [_write(id, revision, RECORD + BODY, lease) for id in ids]
    finished = await stub.Txn(rpc.TxnRequest(success=finishes))
    assert all(one.response_txn.succeeded for one in finished.responses)


def _write(id: bytes, revision: int, value: bytes, lease: int) -> Any:
    """A nested transaction that writes a record and its index entry, if the record was last written
    at this revision."""
    record, entry = b"raw/r/" + id, b"raw/i/" + id
    compare = rpc.Compare(
        result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, key=record, mod_revision=revision
    )
    success = [
        rpc.RequestOp(request_put=rpc.PutRequest(key=record, value=value, lease=lease)),
        rpc.RequestOp(request_put=rpc.PutRequest(key=entry, value=b"", lease=lease)),
    ]
    read = rpc.RequestOp(request_range=rpc.RangeRequest(key=record))
    return rpc.RequestOp(
        request_txn=rpc.TxnRequest(compare=[compare], success=success, failure=[read])
    )
