"""An async run may be interrupted anywhere in its task: its key is closed, and what its body has
given to oncekey is not lost (I10, I14). If its key cannot be closed, nothing keeps it alive (I11).
With ONCEKEY_SOAK=1, on every store in every way.
"""

from __future__ import annotations

import asyncio
import gc
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.engine.interrupter import Interrupter, Stop, TimeLimit

from oncekey import AsyncOnce, NotReplayable, current_attempt
from oncekey.engine.attempts import attempt_driver as aio_driver
from oncekey.engine.attempts.async_attempt import AsyncAttempt, finish_early
from oncekey.engine.attempts.async_runner import AsyncRunner
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing import FakeClock
from oncekey.testing.sync_facade import yield_until

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
PLACES_MAX = 5_000
PLACES_MIN = 50
PATIENCE = 60  # only what will never come takes as long


class Body:
    def __init__(self) -> None:
        self.runs = 0
        self.returned = False

    async def __call__(self, attempt: Any) -> str:
        self.runs += 1
        await asyncio.sleep(0)
        self.returned = True
        return "charged"


class EarlyBody(Body):
    """Finishes before its end, as a guarded ASGI app does; in the attempt's task."""

    async def __call__(self, attempt: Any) -> str:
        self.runs += 1
        await asyncio.sleep(0)
        await finish_early(attempt, "charged")
        self.returned = True
        await asyncio.sleep(0)
        return "ignored"


EVERY = list(product((Body, EarlyBody), ("memory", "sqlite"), (Stop, TimeLimit)))
# Every two of them meet.
PAIRS = [EVERY[0], EVERY[3], EVERY[5], EVERY[6]]


# A coroutine that was interrupted between its creation and its await is never awaited.
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("body_type", "store", "kind"), EVERY if SOAK else PAIRS)
def test_i14_an_async_run_interrupted_anywhere_closes_its_key(
    tmp_path: Path, body_type: type[Body], store: str, kind: type[BaseException]
) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/shop.db?synchronous=off"

    async def main() -> None:
        async with AsyncOnce(url, cache=0) as once:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            await once.run("op", "warm", Body())
            for place in range(1, PLACES_MAX):
                body, key = body_type(), f"k{place}"
                with Interrupter(place, kind) as interrupted:
                    try:
                        async with asyncio.timeout(PATIENCE):
                            await once.run("op", key, body)
                    except TimeoutError:
                        raise AssertionError(f"{interrupted.came}: left waiting") from None
                    except (Stop, TimeLimit, NotReplayable):
                        pass
                await once.drain(PATIENCE)
                await check(once, key, body, interrupted.came)
                if not interrupted.came:
                    assert place > PLACES_MIN, "it was hardly interrupted at all"
                    return
        raise AssertionError("there is no end of places")

    asyncio.run(main())
    gc.collect()  # collects those coroutines while their warnings are expected


async def check(once: AsyncOnce, key: str, body: Body, came: str) -> None:
    heartbeat = once._runner.loop_state().heartbeat
    assert not heartbeat._waiting, f"{came}: an attempt is kept alive for ever"
    assert not heartbeat._beats, f"{came}: an attempt is kept alive for ever"
    assert current_attempt() is None, came
    status = await once.get("op", key)
    state = "free" if status is None else status.state
    assert state != "pending", f"{came}: the key is left in flight"
    assert body.runs <= 1
    if body.returned:
        assert state == "succeeded", f"{came}: a result that was returned is {state}"
    elif state == "free":
        assert (await once.run("op", key, Body())).value == "charged", came
    else:
        assert body.runs or state == "unknown" or state == "failed", came


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_i11_a_task_interrupted_again_and_again_is_not_kept_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Signals interrupt an interrupted task again, whenever it tries to close its key."""

    async def close(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(AsyncRunner, "_close_interrupted", close)

    async def main() -> None:
        async with AsyncOnce("memory://", cache=0) as once:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            kept = []
            for place in range(1, PLACES_MAX):
                body = Body()
                with Interrupter(place, Stop) as interrupted:
                    try:
                        async with asyncio.timeout(PATIENCE):
                            await once.run("op", f"k{place}", body)
                    except TimeoutError:
                        raise AssertionError(f"{interrupted.came}: left waiting") from None
                    except Stop as error:
                        kept.append(error)  # which has the task's frames, and so its attempt
                await once.drain(PATIENCE)
                heartbeat = once._runner.loop_state().heartbeat
                alive = [attempt for attempt in heartbeat._waiting if attempt._is_running()]
                assert not alive, f"{interrupted.came}: an attempt is kept alive for ever"
                assert body.runs <= 1
                if not interrupted.came:
                    assert place > PLACES_MIN, "it was hardly interrupted at all"
                    assert kept, "nothing has interrupted it"
                    return
        raise AssertionError("there is no end of places")

    asyncio.run(main())
    gc.collect()


def test_i10_the_lease_ends_a_task_that_was_interrupted_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    ran = []

    async def close(*_: object) -> None:
        raise Stop

    async def body(attempt: AsyncAttempt) -> str:
        ran.append(attempt.number)
        return "charged"

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(AsyncRunner, "_close_interrupted", close)
        raise Stop

    async def main() -> None:
        store = AsyncMemoryStore(MemoryStore(clock=clock.wall))
        async with AsyncOnce(store, clock=clock, cache=0) as once:
            monkeypatch.setattr(aio_driver, "end_body", interrupted)
            with pytest.raises(Stop):
                await once.run("op", "k", body, retry_safe=True)
            heartbeat = once._runner.loop_state().heartbeat
            assert heartbeat._waiting, "the attempt was not forgotten"
            for _ in range(4):
                clock.advance(10_000_000)
                await yield_until(lambda: not heartbeat._waiting and not heartbeat._beats)
            assert (await once.run("op", "k", body, retry_safe=True)).value == "charged"
            assert ran == [1, 2]

    asyncio.run(main())
