"""Tools for tests of code that uses oncekey, and of stores for it.

    from oncekey.testing import Effects, SampleRequest, assert_idempotent
    from oncekey.testing import FakeClock, Failpoints, FaultyStore
    from oncekey.testing.contract import EngineContract, StoreContract

`assert_idempotent` checks a request of an app in process, and `Effects` counts what it did.
`FakeClock` moves only when a test moves it. `Failpoints`, `FaultyStore` and `AsyncFaultyStore` let
calls of a store fail. `SyncStore` and `SyncOnce` put async stores and engines behind sync methods.
The contract suites are pytest classes for people who write a store; they need `oncekey[testing]`.
The fixtures are in oncekey_pytest, a plugin that pytest finds by itself.
"""

from oncekey.testing.app_check import (
    CaseResult,
    CaseStatus,
    IdempotencyReport,
    NotIdempotent,
    SampleRequest,
    assert_idempotent,
    assert_idempotent_async,
)
from oncekey.testing.effect_counter import AsyncEffects, Effects
from oncekey.testing.failpoints import Failpoints
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault, FaultyStore, SimulatedCrash
from oncekey.testing.sync_facade import LoopThread, SyncOnce, SyncStore

__all__ = [
    "AsyncEffects",
    "AsyncFaultyStore",
    "CaseResult",
    "CaseStatus",
    "Effects",
    "Failpoints",
    "FakeClock",
    "Fault",
    "FaultyStore",
    "IdempotencyReport",
    "LoopThread",
    "NotIdempotent",
    "SampleRequest",
    "SimulatedCrash",
    "SyncOnce",
    "SyncStore",
    "assert_idempotent",
    "assert_idempotent_async",
]
