"""`EngineContract`: tests of what Once and AsyncOnce do on a store.

    from oncekey.testing.contract import EngineContract

    class TestMyStore(EngineContract):
        def open_store(self, clock):
            return MyStore(clock=clock)          # an async store is run by AsyncOnce

The same tests cover sync and async stores. Store and engine share a clock that stands still until a
test moves it.
"""

from __future__ import annotations

from oncekey.testing.contract.abandoned_operations import (
    AbandonedOperationLimits,
    AbandonedOperations,
    RegisteredOperations,
)
from oncekey.testing.contract.abandoned_unknown_keys import AbandonedUnknownKeys
from oncekey.testing.contract.engine_case import EngineCaseBase
from oncekey.testing.contract.engine_steps import EngineSteps
from oncekey.testing.contract.failures import DeadOwners, Failures, Recoveries
from oncekey.testing.contract.leases import Heartbeats, LateStarts, LostLeases
from oncekey.testing.contract.operators import OperatorDecisionsOfKeys, OperatorReports
from oncekey.testing.contract.step_options import ParallelSteps, Probes, StepRequests
from oncekey.testing.contract.stored_results import Guards, Runs, UnstorableResults
from oncekey.testing.contract.subscribers import ConcurrentCallers, ReplayCaches, Subscribers
from oncekey.testing.contract.waiters import WaitingCallers


# pytest runs the tests of the last base first: those that a new store needs first are at the end.
class EngineContract(
    OperatorDecisionsOfKeys,
    OperatorReports,
    ConcurrentCallers,
    ReplayCaches,
    Subscribers,
    AbandonedUnknownKeys,
    AbandonedOperationLimits,
    AbandonedOperations,
    RegisteredOperations,
    ParallelSteps,
    Probes,
    StepRequests,
    EngineSteps,
    WaitingCallers,
    LateStarts,
    LostLeases,
    Heartbeats,
    Recoveries,
    DeadOwners,
    Failures,
    UnstorableResults,
    Guards,
    Runs,
    EngineCaseBase,
):
    """Subclass it, name it Test..., override `open_store`."""
