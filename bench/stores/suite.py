"""`python -m bench stores`: Valkey, its Cluster and etcd, beside raw limits, peers and each other.

A slice is two seconds of work after a warm-up, a round one slice of every contestant, and a figure
the median of its slices.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.servers.redis_server import DURABLE, RedisServer

from bench.figures import Report
from bench.postgres import server as postgres_servers
from bench.stores import cluster, etcd, side_by_side, valkey

DATABASE = "oncekey"


def run() -> list[Report]:
    with RedisServer(settings=DURABLE) as server:
        reports = [valkey.lifecycles(server), valkey.replays(server)]
    reports.append(cluster.report())
    with etcd.started() as members:
        reports.append(etcd.report(members))
    reports.append(_side_by_side())
    return reports


def _side_by_side() -> Report:
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_servers.started() as database,
        RedisServer(settings=DURABLE) as server,
        etcd.started() as members,
    ):
        database.create_database(DATABASE)
        return side_by_side.report(
            [
                side_by_side.sqlite(Path(folder)),
                side_by_side.postgres(database, DATABASE),
                side_by_side.valkey(server),
                etcd.subject(members),
            ]
        )
