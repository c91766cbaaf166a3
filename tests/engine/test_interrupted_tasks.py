"""An async run may be interrupted anywhere in its task: its key is closed, and what its body
returned is not lost (I10, I14). With ONCEKEY_SOAK=1, on every store in every way.
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
from oncekey.engine.aio.attempt import finish_early

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
PLACES_MAX = 5_000
PLACES_MIN = 50
PATIENCE = 5


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
