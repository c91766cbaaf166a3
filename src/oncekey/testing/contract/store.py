"""`StoreContract`: what every store must do, as tests. One text for every store and colour.

    from oncekey.testing.contract import StoreContract

    class TestMyStore(StoreContract):
        def open_store(self, clock):
            return MyStore(clock=clock)          # or an async store

The names cite core/store.py (S1-S10) and the design's invariants (I1-I15).
"""

from __future__ import annotations

from oncekey.testing.contract.base import ContractBase
from oncekey.testing.contract.batches import Batches, Crowds, Matter
from oncekey.testing.contract.claims import FreshClaims, MetClaims
from oncekey.testing.contract.retention import History, Retention, Undecided
from oncekey.testing.contract.unfinished import Unfinished
from oncekey.testing.contract.verbs import OwnerVerbs, Resolving, Steps


class StoreContract(
    FreshClaims,
    MetClaims,
    OwnerVerbs,
    Steps,
    Resolving,
    Batches,
    Matter,
    Crowds,
    Retention,
    Undecided,
    History,
    Unfinished,
    ContractBase,
):
    """Subclass it, name it Test..., override `open_store`."""
