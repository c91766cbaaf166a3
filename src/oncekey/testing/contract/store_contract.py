"""`StoreContract`: tests of what every store must do, sync or async.

    from oncekey.testing.contract import StoreContract

    class TestMyStore(StoreContract):
        def open_store(self, clock):
            return MyStore(clock=clock)          # or an async store

        def open_beside(self, clock):            # as another process would, on the same data
            return MyStore(clock=clock)

Test names cite the guarantees S1-S12 of core/store.py and the invariants I1-I15 of CONTRIBUTING.md.
"""

from __future__ import annotations

from oncekey.testing.contract.adopted_records import AdoptedRecords
from oncekey.testing.contract.batch_rules import Batches, BytesStored, ManyKeys
from oncekey.testing.contract.claims import ClaimsOfFreshKeys, ClaimsOfKnownKeys
from oncekey.testing.contract.concurrent_claims import ConcurrentClaims
from oncekey.testing.contract.owner_commands import OwnerCommands, ResolvedKeys, SavedSteps
from oncekey.testing.contract.retention import History, Retention, UndecidedKeys
from oncekey.testing.contract.searched_records import OperatorDecisions, SearchedRecords
from oncekey.testing.contract.store_case import ContractBase
from oncekey.testing.contract.unfinished_list import UnfinishedLists


# pytest runs the tests of the last base first: those that a new store needs first are at the end.
class StoreContract(
    AdoptedRecords,
    OperatorDecisions,
    SearchedRecords,
    UnfinishedLists,
    History,
    UndecidedKeys,
    Retention,
    ConcurrentClaims,
    ManyKeys,
    BytesStored,
    Batches,
    ResolvedKeys,
    SavedSteps,
    OwnerCommands,
    ClaimsOfKnownKeys,
    ClaimsOfFreshKeys,
    ContractBase,
):
    """Subclass it, name it Test..., override `open_store`."""
