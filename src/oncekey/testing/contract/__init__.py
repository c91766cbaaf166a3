"""The contract suites, for our stores and for yours: `StoreContract` and `EngineContract`."""

from oncekey.testing.contract.engine_contract import EngineContract
from oncekey.testing.contract.store_contract import StoreContract

__all__ = ["EngineContract", "StoreContract"]
