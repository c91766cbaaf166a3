"""`Effects` and `AsyncEffects` count, deduplicate by key, and hold the next effect if told to."""

from __future__ import annotations

import asyncio
import threading

from oncekey.testing import AsyncEffects, Effects


def test_effects_are_counted_in_their_order_and_can_be_cleared() -> None:
    effects = Effects()
    assert effects
    effects.record(500)
    effects.record(900)
    assert (list(effects), len(effects)) == ([500, 900], 2)
    effects.clear()
    assert len(effects) == 0


def test_an_effect_with_a_known_key_counts_once() -> None:
    effects = Effects()
    for key in ("k-1", "k-1", "k-2", None, None):
        effects.record(key=key)
    assert len(effects) == 4


def test_an_armed_counter_holds_one_effect_until_its_release() -> None:
    effects = Effects()
    effects.arm()
    held = threading.Thread(target=effects.record, args=("held",))
    held.start()
    while not effects.is_held():
        held.join(0.001)
    effects.record("beside it")
    assert list(effects) == ["held", "beside it"]
    effects.release()
    held.join()
    assert not effects.is_held()


def test_an_event_loop_is_never_blocked() -> None:
    """Every other request of that loop would wait with the one that is held."""
    effects = Effects()

    async def record() -> None:
        effects.arm()
        effects.record()

    asyncio.run(record())
    assert not effects.is_held()
    effects.release()


def test_an_async_effect_is_held_on_its_loop_and_released_from_any_thread() -> None:
    effects = AsyncEffects()

    async def main() -> None:
        effects.arm()
        held = asyncio.create_task(effects.record())
        await asyncio.sleep(0)
        assert effects.is_held()
        await effects.record()
        await asyncio.to_thread(effects.release)
        await held

    asyncio.run(main())
    assert len(effects) == 2
