"""Runs the code of a page of the documentation, as it is printed there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import PAGES, ROOT, commands, files, name_of, script
from tests.support.etcd_stores import etcd
from tests.support.kafka_servers import headers_kafka
from tests.support.postgres_stores import server
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.redis_stores import valkey
from tests.support.servers.sqs_server import sqs

# What newcomers run first, and then again: on the file that the first run has left behind.
RUN_TWICE = ("README.md", "docs/tutorial/first-operation.md")
# They try a key with another request, and the log says so.
EXPECTED_WARNING = ": the key belongs to another request, and was refused"
WITH_CODE = [page for page in PAGES if script(page)]
OF_QUEUES = [page for page in WITH_CODE if "queues" in page.stem]
# Databases of Valkey that no other test uses. The tests of the two groups may run at once.
REDIS_DATABASE, REDIS_DATABASE_OF_QUEUES = 15, 13


def run_code(page: Path, folder: Path) -> None:
    """Its files are written, its `python manage.py` lines run, then its code from top to bottom in
    one process, in that folder, with warnings as errors."""
    for name, code in files(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)
    (folder / "page.py").write_text(script(page))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    code = "".join([script(page), *files(page).values()])
    if "DATABASE_URL" in code:
        environment["DATABASE_URL"] = server().create_database(f"docs-{page.stem}")
    if "REDIS_URL" in code:
        environment["REDIS_URL"] = empty_redis(page)
    if "KAFKA_BROKERS" in code:
        environment["KAFKA_BROKERS"] = headers_kafka().address
    if "RABBITMQ_URL" in code:
        environment["RABBITMQ_URL"] = rabbitmq().url
    if "oncekey.queues.sqs" in code:
        environment |= sqs().environment_of_clients()
    if "ETCD_URL" in script(page):
        environment["ETCD_URL"] = etcd().url(f"docs-{page.stem}")
    for arguments in commands(page):
        run_python(arguments, folder, environment)
    for _ in range(2 if name_of(page) in RUN_TWICE else 1):
        complaints = run_python(["-W", "error", "page.py"], folder, environment).splitlines()
        unexpected = [line for line in complaints if EXPECTED_WARNING not in line]
        assert name_of(page) not in RUN_TWICE or unexpected == [], "nothing to be alarmed by"


def empty_redis(page: Path) -> str:
    """The URL of an empty database of Valkey."""
    database = REDIS_DATABASE_OF_QUEUES if page in OF_QUEUES else REDIS_DATABASE
    with valkey().client(db=database) as client:
        client.flushdb()
    return valkey().url(database)


def run_python(arguments: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Run it to its end, which must be a good one; returns what it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
