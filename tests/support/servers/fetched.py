"""Fetches every server and tool that the tests start, so that the first run does not wait for them
one after the other: `python -m tests.support.servers.fetched`.

What cannot be had is told here, and again by the tests that need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.demo.browser import program as find_chromium
from tests.support.servers.etcd_cluster import find_etcd
from tests.support.servers.kafka_server import find_java, find_kafka
from tests.support.servers.maven_jars import find_jars
from tests.support.servers.pgbouncer import find_pgbouncer
from tests.support.servers.processes import ServerMissing
from tests.support.servers.prometheus_tools import find_promtool
from tests.support.servers.rabbitmq_server import find_rabbitmq

# The largest come first: two are fetched at a time.
FINDERS: dict[str, Callable[[], object]] = {
    "Chromium": find_chromium,
    "Kafka 4 and ElasticMQ": lambda: find_jars("kafka"),
    "Prometheus' promtool": find_promtool,
    "RabbitMQ": find_rabbitmq,
    "etcd": find_etcd,
    "Kafka 0.9": find_kafka,
    "Java": find_java,
    "PgBouncer": find_pgbouncer,
}


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        for line in pool.map(_found, FINDERS):
            sys.stdout.write(f"  {line}\n")
            sys.stdout.flush()


def _found(name: str) -> str:
    try:
        FINDERS[name]()
    except ServerMissing as missing:
        return f"{name.upper()} IS MISSING: {missing.how_to_get}"
    return f"{name} is here"


if __name__ == "__main__":
    main()
