"""The contract suites, for our stores and for yours: `StoreContract` and `EngineContract`."""

from oncekey.testing.contract.engine import EngineContract
from oncekey.testing.contract.store import StoreContract

__all__ = ["EngineContract", "StoreContract"]
