"""`StoreContract`: what every store must do, as tests. One text for every store and colour.

    from oncekey.testing.contract import StoreContract

    class TestMyStore(StoreContract):
        def open_store(self, clock):
            return MyStore(clock=clock)          # or an async store

The names cite core/store.py (S1-S10) and the design's invariants (I1-I15).
"""

from __future__ import annotations

from oncekey.testing.contract.batch_rules import Batches, BytesStored, ManyKeys
from oncekey.testing.contract.claims import ClaimsOfFreshKeys, ClaimsOfKnownKeys
from oncekey.testing.contract.owner_commands import OwnerCommands, ResolvedKeys, SavedSteps
from oncekey.testing.contract.retention import History, Retention, UndecidedKeys
from oncekey.testing.contract.store_case import ContractBase
from oncekey.testing.contract.unfinished_list import UnfinishedLists


class StoreContract(
    ClaimsOfFreshKeys,
    ClaimsOfKnownKeys,
    OwnerCommands,
    SavedSteps,
    ResolvedKeys,
    Batches,
    BytesStored,
    ManyKeys,
    Retention,
    UndecidedKeys,
    History,
    UnfinishedLists,
    ContractBase,
):
    """Subclass it, name it Test..., override `open_store`."""
