"""The figure of bytes on etcd is what the server itself exports, and covers what the store has."""

from __future__ import annotations

import os
import re
import urllib.request

from tests.stores.etcd.two_stores import Process, fresh_prefix
from tests.support.etcd_stores import etcd
from tests.support.servers.processes import wait_until

from oncekey.stores.etcd.shared_store import SharedStore
from oncekey.stores.etcd.transactions import range_of
from oncekey.testing.contract.store_case import claim, token

COUNT = 500
_IN_USE = re.compile(r"^etcd_mvcc_db_total_size_in_use_in_bytes (\S+)$", re.M)


def exported() -> list[float]:
    """What each member tells Prometheus, which is another way than the store's."""
    found = []
    for address in etcd().addresses.split(","):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=90) as answer:
            match = _IN_USE.search(answer.read().decode())
        assert match is not None
        found.append(float(match[1]))
    return found


def test_the_measures_say_how_much_etcd_has_in_use() -> None:
    prefix = fresh_prefix()
    process = Process(prefix)
    try:
        process.store.apply([claim(os.urandom(16), token("own")) for _ in range(COUNT)])

        async def stored(cluster: SharedStore) -> int:
            request = range_of(cluster.keys.root, end=cluster.keys.root + b"\xff")
            reply = await cluster.members.call("Range", request, cluster.members.deadline())
            return sum(len(one.key) + len(one.value) for one in reply.kvs)

        own = process.run(stored)
        assert own > COUNT * 32
        # etcd counts what it has written to its file, which it does every 100 ms.
        wait_until(lambda: process.store.measure().bytes > own, "etcd has written all of it")
        measures, told = process.store.measure(), exported()
        assert min(told) / 2 < measures.bytes < max(told) * 2
    finally:
        process.close()
