"""Tools for tests of code that uses oncekey, and of stores for it.

    from oncekey.testing import FakeClock, FaultyStore
    from oncekey.testing.contract import EngineContract, StoreContract

`FakeClock` moves only when a test moves it, `FaultyStore` and `AsyncFaultyStore` fail by a script,
and `SyncStore` and `SyncOnce` put async stores and engines behind sync methods. The contract suites
are pytest classes for people who write a store; they need `oncekey[testing]`.
"""

from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault, FaultyStore
from oncekey.testing.sync_facade import LoopThread, SyncOnce, SyncStore

__all__ = [
    "AsyncFaultyStore",
    "FakeClock",
    "Fault",
    "FaultyStore",
    "LoopThread",
    "SyncOnce",
    "SyncStore",
]
