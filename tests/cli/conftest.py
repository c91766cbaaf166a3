"""Runs the real `oncekey` command, as a user would."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cli.command_runner import Running, Start
from tests.cli.operator_shop import Shop
from tests.support.postgres_stores import server
from tests.support.redis_stores import valkey

from oncekey import Once, Policy, Terminal
from oncekey.cli.main import main
from oncekey.core.identity import Identities
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.redis import RedisStore
from oncekey.stores.sqlite import SQLiteStore

DAY_US = 86_400_000_000
TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Stdout as JSON; fails if anything else is in it."""
        return json.loads(self.out)


Command = Callable[..., Ran]


@pytest.fixture(scope="session")
def executable() -> str:
    return str(Path(sys.executable).with_name("oncekey"))


@pytest.fixture(scope="session")
def oncekey(executable: str) -> Command:
    def run(*arguments: str, **environment: str) -> Ran:
        done = subprocess.run(
            [executable, *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def start(executable: str) -> Iterator[Start]:
    begun: list[Running] = []

    def run(*arguments: str, **environment: str) -> Running:
        begun.append(Running(executable, *arguments, **environment))
        return begun[-1]

    yield run
    for running in begun:
        running.close()


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command within this process, where a process for each run would prove no more."""

    def run(*arguments: str, stdin: bytes = b"", **environment: str) -> Ran:
        capfd.readouterr()
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            # Libraries that other tests import set up logging, which a process of oncekey does not.
            root = logging.getLogger()
            others = [each for each in root.handlers if type(each) is not logging.StreamHandler]
            patched.setattr(root, "handlers", others)
            code = main(arguments)
        said = capfd.readouterr()
        return Ran(code, said.out, said.err)

    return run


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


@pytest.fixture
def charged(url: str) -> str:
    """The URL of a store with three keys: one succeeded, one failed, one belongs to acct_1."""
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: {"id": "ch_1"})
        once.run("charge", "order-1", lambda attempt: {"id": "ch_2"}, scope="acct_1")
        with pytest.raises(Terminal):
            once.run("charge", "order-2", _decline)
    return url


@pytest.fixture
def ended(url: str, tmp_path: Path) -> str:
    """The URL of a store with five records that ended yesterday and one that is in flight."""

    def yesterday() -> int:
        return time.time_ns() // 1_000 - DAY_US

    store = SQLiteStore(tmp_path / "keys.db", clock=yesterday)
    with Once(store, policy=Policy(keep="1h", audit="1h")) as once:
        for number in range(5):
            once.run("charge", f"old-{number}", lambda attempt: None)
    with Once(url) as once:
        once.run("charge", "new", lambda attempt: None)
    return url


def _decline(attempt: object) -> None:
    # An escape sequence, as a provider's message might carry: no terminal may obey it.
    raise Terminal("card declined \x1b[2J")


@pytest.fixture
def file_shop(tmp_path: Path) -> Iterator[Shop]:
    """An SQLite store alone, for tests that start processes to show what no store decides."""
    shop = _shop_in(tmp_path)
    yield shop
    shop.store.close()


def _shop_in(folder: Path) -> Shop:
    path = folder / "shop.db"
    shop = Shop(f"sqlite:///{path}", lambda clock: SQLiteStore(path, clock=clock))
    shop.store.bind(Identities().check_value())
    return shop


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis"])
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """A store that the tests of a module share; each uses scopes and keys of its own."""
    if request.param == "sqlite":
        shop = _shop_in(tmp_path_factory.mktemp("shop"))
        yield shop
        shop.store.close()
        return
    if request.param == "redis":
        prefix = f"shop-{uuid4().hex[:12]}"
        url = f"{valkey().url()}?prefix={prefix}"
        shop = Shop(url, lambda clock: RedisStore(valkey().url(), prefix=prefix, clock=clock))
        shop.store.bind(Identities().check_value())
        yield shop
        shop.store.close()
        return
    schema = f"shop_{uuid4().hex[:12]}"
    url = f"{server().url()}?schema={schema}"
    shop = Shop(url, lambda clock: PostgresStore(server().url(), schema=schema, clock=clock))
    shop.store.bind(Identities().check_value())
    yield shop
    shop.store.close()
    server().execute(f"DROP SCHEMA {schema} CASCADE")
