"""oncekey: operations with side effects, safe to retry."""

from oncekey.core.codec import Codec
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    LeaseLost,
    Mismatch,
    MissingKey,
    NotReplayable,
    NotStarted,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    Terminal,
    WaitTimeout,
)
from oncekey.core.events import Fact, Notice
from oncekey.core.identity import child_key
from oncekey.core.levels import Guarantee, Level
from oncekey.core.policy import Policy
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.engine.blocking.once import Once
from oncekey.engine.blocking.runner import Attempt
from oncekey.engine.kernel import Result

__version__ = "0.1.0"
