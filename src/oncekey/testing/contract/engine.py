"""`EngineContract`: what Once and AsyncOnce do on a store, as tests. One text for both colours.

    from oncekey.testing.contract import EngineContract

    class TestMyStore(EngineContract):
        def open_store(self, clock):
            return MyStore(clock=clock)          # an async store is run by AsyncOnce

Store and engine share a clock that stands still until a test moves it.
"""

from __future__ import annotations

from oncekey.testing.contract.answers import Guards, OddResults, Runs
from oncekey.testing.contract.bench import BenchBase
from oncekey.testing.contract.completing import (
    Completing,
    CompletingCorners,
    CompletingUnknown,
    Registered,
)
from oncekey.testing.contract.endings import DeadOwners, Failures, Recoveries
from oncekey.testing.contract.leases import Heartbeats, LateStarts, LostLeases, Waiting
from oncekey.testing.contract.noticing import Caching, Crowding, Subscribers
from oncekey.testing.contract.step_options import ParallelSteps, Probes, StepRequests
from oncekey.testing.contract.steps import EngineSteps


class EngineContract(
    Runs,
    Guards,
    OddResults,
    Failures,
    DeadOwners,
    Recoveries,
    Heartbeats,
    LostLeases,
    LateStarts,
    Waiting,
    EngineSteps,
    StepRequests,
    Probes,
    ParallelSteps,
    Registered,
    Completing,
    CompletingCorners,
    CompletingUnknown,
    Subscribers,
    Caching,
    Crowding,
    BenchBase,
):
    """Subclass it, name it Test..., override `open_store`."""
