"""The contract suites that every store must pass, as pytest classes to subclass."""

from oncekey.testing.contract.engine_contract import EngineContract
from oncekey.testing.contract.store_contract import StoreContract

__all__ = ["EngineContract", "StoreContract"]
