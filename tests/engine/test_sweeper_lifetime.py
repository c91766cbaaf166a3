"""The background sweeper: the event loop and the process it belongs to, and its options."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oncekey.core.errors import ConfigurationError
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore
from oncekey.testing.fake_clock import FakeClock


def test_the_next_use_starts_the_sweeper_again_after_its_event_loop_ended() -> None:
    clock = FakeClock()
    once = AsyncOnce(AsyncMemoryStore(), sweep_every="1m", clock=clock)

    async def use() -> bool:
        assert await once.get("op", "k") is None
        task = once._background[0]._task
        return task is not None and task.get_loop() is asyncio.get_running_loop()

    for _ in range(2):
        assert asyncio.run(use())  # its end cancels every task
    asyncio.run(once.close())


# --- forks ----------------------------------------------------------------------------------------

FORK = """
import asyncio, os, sys, threading
from oncekey import AsyncOnce, Once

kind, path = sys.argv[1:]

def sweepers():
    return [thread for thread in threading.enumerate() if thread.name == "oncekey-sweeper"]

def child(check):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

if kind == "blocking":
    once = Once("sqlite:///" + path, sweep_every="1h")
    token = once._background[0]._token
    assert len(sweepers()) == 1
    def check():
        assert sweepers() == []               # none is inherited
        once.run("op", "k", lambda attempt: 1)
        assert len(sweepers()) == 1           # the first use starts one, of its own
        assert once._background[0]._token != token
        once.close()
        assert sweepers() == []
    child(check)
    assert len(sweepers()) == 1
    once.close()
else:
    once = AsyncOnce("sqlite:///" + path, sweep_every="1h")
    async def use():
        await once.get("op", "k")
        task = once._background[0]._task
        assert task is not None and task.get_loop() is asyncio.get_running_loop()
        return once._background[0]._token
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    token = asyncio.run_coroutine_threadsafe(use(), loop).result()
    def check():
        assert asyncio.run(use()) != token
    child(check)
    asyncio.run_coroutine_threadsafe(once.close(), loop).result()
"""


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_forked_child_has_no_sweeper_until_it_uses_the_engine(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, kind, str(tmp_path / "keys.db")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Once, AsyncOnce])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sweep_every": "soon"}, "sweep_every='soon' is not a duration"),
        ({"sweep_every": 60}, "sweep_every is a int"),
        ({"sweep_every": "1ms"}, "must be 100ms to 1d"),
        ({"sweep_every": timedelta(days=2)}, "must be 100ms to 1d"),
        ({"sweep_every": "1m", "sweep_limit": 0}, "sweep_limit=0 must be a number of records"),
        ({"sweep_limit": "10"}, "sweep_limit='10'"),
        ({"sweep_limit": True}, "sweep_limit=True"),
    ],
)
def test_wrong_sweeper_options_raise_at_construction(
    make: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make("memory://", **options)
