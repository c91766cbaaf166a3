"""The loads of the fault tests notice what they are for; otherwise they would prove nothing."""

from __future__ import annotations

from tests.fault.effect_load import EffectLoad
from tests.fault.store_load import StoreLoad, lost

from oncekey.engine.store_urls import blocking_store
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore


def test_two_engines_that_share_no_store_are_seen_to_run_a_body_twice() -> None:
    # Each engine opens a store of its own in memory, and so does the one that checks.
    with EffectLoad("memory://", pairs=1) as load:
        load.wait_for(20)
    found = load.violations()
    assert any("ran 2 times" in line for line in found)
    assert any("now ran again" in line for line in found)


def test_a_store_that_has_forgotten_everything_is_seen_to_have_lost_it() -> None:
    store = MemoryStore()
    with StoreLoad(store, AsyncMemoryStore(), threads=1, tasks=0) as load:
        load.wait_for(50)
        assert lost(store, dict(load.acknowledged)) == []
    assert load.wrong_replies == []
    missing = lost(blocking_store("memory://"), load.acknowledged)
    assert len(missing) == len(load.acknowledged) >= 50
    assert load.finished
