"""Every error oncekey raises, in one tree.

    OncekeyError
    ├─ InvalidKey            400  the key, scope or operation cannot be used
    │   └─ MissingKey        400  a key is required here and none came
    ├─ Mismatch              422  this key was used for another request
    ├─ InFlight              409  another attempt holds the key; carries retry_after
    │   └─ WaitTimeout       409  ... and was still holding it when `wait` ended
    ├─ OutcomeUnknown        409  the owner died; whether it ran is not known
    ├─ OperationFailed       500  the stored failure of the first run
    ├─ LeaseLost             500  this attempt was overtaken, its outcome was refused
    ├─ NotReplayable         500  it ran, but its result cannot be given again
    ├─ KeyChanged            409  an operator decided about a key that had changed meanwhile
    ├─ StoreUnavailable      503  the store did not answer; nothing was assumed
    └─ ConfigurationError    500  raised while setting up, never while serving

`Terminal` and `NotStarted` are outside the tree: a body raises them to say what happened.

Owns the messages users read. A message says what happened, to which operation and key (by a short
tag, never the raw key, because errors end up in logs) and what to do. Knows no store.
"""

from __future__ import annotations

from typing import ClassVar


class OncekeyError(Exception):
    """The base of every error that oncekey raises. `status` is the HTTP status it maps to."""

    status: ClassVar[int] = 500

    def __init__(self, message: str = "", *, operation: str = "", tag: str = "") -> None:
        super().__init__(message)
        self.operation = operation
        self.tag = tag

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        if not self.operation:
            return message
        return f"{self.operation} [{self.tag}]: {message}"


class InvalidKey(OncekeyError):
    """The key, scope or operation name breaks a limit."""

    status = 400


class MissingKey(InvalidKey):
    """A key is required and none was given: it is None or empty."""


class Mismatch(OncekeyError):
    """The key is in use for a request with other content. Use a new key for a new request."""

    status = 422


class InFlight(OncekeyError):
    """Another attempt holds this key. Retry with the same key after `retry_after` seconds."""

    status = 409

    def __init__(
        self, message: str = "", *, retry_after: float = 1.0, operation: str = "", tag: str = ""
    ) -> None:
        super().__init__(message, operation=operation, tag=tag)
        self.retry_after = retry_after


class WaitTimeout(InFlight):
    """The other attempt was still running when this caller's `wait` ended."""


class OutcomeUnknown(OncekeyError):
    """The owner died after it may have acted. Never run again without a decision.

    Give the operation a `recover=` function, or resolve the key by hand. Do not use a new key
    before you know: that is how a customer is charged twice.
    """

    status = 409


class OperationFailed(OncekeyError):
    """The first run failed for good; this is its stored error, the operation did not run again."""

    def __init__(
        self,
        message: str = "",
        *,
        error_type: str = "",
        error_message: str = "",
        operation: str = "",
        tag: str = "",
    ) -> None:
        super().__init__(message, operation=operation, tag=tag)
        self.error_type = error_type
        self.error_message = error_message


class LeaseLost(OncekeyError):
    """This attempt fell silent longer than its lease, and another one took over or somebody decided
    the key. Its outcome was not stored. Retry with the same key to get the stored outcome.

    `value` holds the operation's own result if it returned one.
    """

    def __init__(
        self, message: str = "", *, value: object = None, operation: str = "", tag: str = ""
    ) -> None:
        super().__init__(message, operation=operation, tag=tag)
        self.value = value


class NotReplayable(OncekeyError):
    """The operation ran, but its result cannot be given (again).

    `value` holds the result if this very call ran the operation, else None.
    """

    def __init__(
        self, message: str = "", *, value: object = None, operation: str = "", tag: str = ""
    ) -> None:
        super().__init__(message, operation=operation, tag=tag)
        self.value = value


class KeyChanged(OncekeyError):
    """An operator's decision was not taken, because the key is no longer what the operator saw, or
    was never in a state in which this can be decided. Look at it again."""

    status = 409


class StoreUnavailable(OncekeyError):
    """The store did not answer as it should. oncekey fails closed: retry with the same key.

    `ambiguous` is True if the command may have been applied although no reply came.
    `final` is True if trying again cannot help, because the store is closed.
    `timed_out` is True if the store took too long, which a smaller batch may not.
    `value` holds the operation's own result if it ran and could not be recorded.
    """

    status = 503

    def __init__(
        self,
        message: str = "",
        *,
        ambiguous: bool = True,
        final: bool = False,
        timed_out: bool = False,
        value: object = None,
        operation: str = "",
        tag: str = "",
    ) -> None:
        super().__init__(message, operation=operation, tag=tag)
        self.ambiguous = ambiguous
        self.final = final
        self.timed_out = timed_out
        self.value = value


class ConfigurationError(OncekeyError):
    """The set-up cannot work. Raised at construction, never while serving a request."""


class Terminal(Exception):
    """Raise in a body: this failure is final. It is stored and every retry gets it."""


class NotStarted(Exception):
    """Raise in a body: nothing has happened yet. The key is freed, a retry may run."""
