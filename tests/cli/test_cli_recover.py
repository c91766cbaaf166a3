"""`oncekey recover`: finishes abandoned operations, reports what it could not, ends at a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cli.command_runner import Start
from tests.cli.conftest import Command
from tests.cli.queue_shop import environment_of

from oncekey.cli.output import ExitCode

EVERY = ("--every", "1s", "--json")

# This module is imported by the command, here or in a process of its own, and run by a process that
# dies in the middle of it. The clocks of that process stand still, five seconds behind, so that its
# lease of one second is over when the command runs, and never before it dies.
SHOP = """
import os, sys, time
from oncekey import {engine}, Policy, Recovery
from oncekey.stores.sqlite import {store}
from oncekey.testing import FakeClock

dying = "dies" in sys.argv
if dying:
    moment = time.time_ns() // 1_000 - 5_000_000
    store = {store}("{path}", clock=lambda: moment)
    once = {engine}(store, policy=Policy(lease="1s", keep="7d"), clock=FakeClock())
else:
    policy = Policy(lease="1m", recover_grace="1s", keep="7d")
    once = {engine}({store}("{path}"), policy=policy)

def answer(unknown):
    return None if unknown.request == "who knows" else Recovery.succeeded("it was sent")

@once.operation("ship", retry_safe=True)
{define} ship(attempt, request):
    held = {wait}attempt.step("reserve", lambda key: "hold " + request)
    if dying:
        os._exit(9)
    return {wait}attempt.step("send", lambda key: held + ", sent")

@once.operation("mail", recover=answer)
{define} mail(attempt, request):
    assert dying, "it must not run again"
    os._exit(9)

empty = {engine}("memory://")
something = 5

if dying:
    operation, key, request = sys.argv[2:]
    run = globals()[operation].run(key, request)
    if "{wait}":
        import asyncio
        asyncio.run(run)
"""


class Shop:
    def __init__(self, folder: Path, colour: str) -> None:
        words = {"engine": "Once", "store": "SQLiteStore", "define": "def", "wait": ""}
        if colour == "asyncio":
            words = {
                "engine": "AsyncOnce",
                "store": "AsyncSQLiteStore",
                "define": "async def",
                "wait": "await ",
            }
        self.module = f"shop_{uuid4().hex[:8]}"
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self.environment = environment_of(folder)
        self._file = folder / f"{self.module}.py"
        self._file.write_text(SHOP.format(path=folder / "shop.db", **words))

    def die(self, operation: str, key: str, request: str) -> None:
        """Begins an operation in a process that dies in the middle of it."""
        done = subprocess.run(
            [sys.executable, str(self._file), "dies", operation, key, request],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 9, done.stderr

    def forget(self) -> None:
        """Closes what the command has imported into this process."""
        module = sys.modules.pop(self.module, None)
        if module is None:
            return
        for once in (module.once, module.empty):
            closing = once.close()
            if closing is not None:
                asyncio.run(closing)


@pytest.fixture(params=["blocking", "asyncio"])
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    shop = Shop(tmp_path, request.param)
    monkeypatch.syspath_prepend(tmp_path)
    yield shop
    shop.forget()


def recover(here: Command, shop: Shop, *options: str) -> Any:
    return here("recover", f"{shop.module}:once", *options)


def test_i10_recover_finishes_the_operation_of_a_dead_process(here: Command, shop: Shop) -> None:
    shop.die("ship", "order-1", "1042")
    shown = here("show", shop.url, "ship", "order-1", "--bodies")
    assert 'asked for     "1042"' in shown.out
    assert "pending (its owner fell silent" in shown.out
    ran = recover(here, shop)
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    assert "succeeded" in ran.out
    assert "1 succeeded; 0 under way" in ran.out
    shown = here("show", shop.url, "ship", "order-1", "--bodies", "--json")
    assert (shown.data["state"], shown.data["value"]) == ("succeeded", "hold 1042, sent")
    assert shown.data["attempt"] == 2


def test_recover_decides_an_unknown_key(here: Command, shop: Shop) -> None:
    shop.die("mail", "order-1", "receipt")
    ran = recover(here, shop, "--json")
    (done,) = ran.data["done"]
    assert (ran.code, done["operation"], done["outcome"]) == (ExitCode.OK, "mail", "succeeded")
    assert ran.data["counts"] == {"succeeded": 1}
    shown = here("show", shop.url, "mail", "order-1", "--bodies", "--json")
    assert shown.data["value"] == "it was sent"


def test_recover_with_an_undecided_key_exits_with_1(here: Command, shop: Shop) -> None:
    shop.die("mail", "order-1", "who knows")
    ran = recover(here, shop)
    assert ran.code == ExitCode.FAILED
    assert "unknown: nobody can tell yet" in ran.out
    assert "order-1" not in ran.out, "keys are told by their tags"


def test_recover_with_nothing_to_do_says_so(here: Command, shop: Shop) -> None:
    ran = recover(here, shop)
    assert (ran.code, ran.out) == (
        ExitCode.OK,
        "nothing was abandoned; 0 under way or to be tried later\n",
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_recover_every_runs_until_a_signal(start: Start, shop: Shop, how: signal.Signals) -> None:
    shop.die("ship", "order-1", "1")
    running = start("recover", f"{shop.module}:once", *EVERY, **shop.environment)
    first = json.loads(running.line())
    assert first["counts"] == {"succeeded": 1}
    running.signal(signal.SIGSTOP)  # so that it cannot take over before the other has died
    shop.die("ship", "order-2", "2")
    running.signal(signal.SIGCONT)
    assert json.loads(running.line())["counts"] == {"succeeded": 1}
    assert running.end(how) == ExitCode.OK


@pytest.mark.parametrize("shop", ["blocking"], indirect=True)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SHOP", "is not MODULE:NAME"),
        ("SHOP:nothing", "cannot be imported"),
        ("nowhere:once", "cannot be imported"),
        ("SHOP:something", "is a int; name the Once or AsyncOnce"),
        ("SHOP:empty", "no operation is registered with SHOP:empty"),
    ],
)
def test_wrong_arguments_of_recover_are_refused(
    here: Command, shop: Shop, name: str, said: str
) -> None:
    ran = here("recover", name.replace("SHOP", shop.module))
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert said.replace("SHOP", shop.module) in ran.err
