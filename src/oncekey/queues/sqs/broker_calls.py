"""Calls of the SQS API as values, and what their failures mean.

The programs beside this module are generators: they yield `Call`s and are sent what SQS answered,
or a `CallFailed`. So boto3 and aiobotocore run the same programs, and only consumers.py does
I/O. This module must not import either client: the failures of both are recognized by what they
carry.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.sqs.settings import address_of

T = TypeVar("T")
E = TypeVar("E")

BATCH_MAX: Final = 10  # entries of one batch call, and messages of one receive
# What botocore raises where the settings of a client are wrong; nothing was asked of SQS yet.
_WRONG_SETTINGS: Final = frozenset(
    (
        "ConfigNotFound",
        "ConfigParseError",
        "InvalidConfigError",
        "InvalidRegionError",
        "NoRegionError",
        "ProfileNotFound",
        "ValueError",
    )
)


class SqsRefused(OncekeyError):
    """SQS refuses what a consumer or a sender does, and will go on to: the queue is gone, the
    credentials do not allow it, a message cannot be sent as it is. A consumer ends, and what it had
    not settled is delivered again; a publisher tries the message again, and parks it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API: a method of the client, and its arguments."""

    operation: str
    arguments: dict[str, Any]


class Cause(enum.Enum):
    """Why a call failed, as far as a consumer has to know."""

    UNAVAILABLE = "SQS did not answer as it should"
    THROTTLED = "SQS asks for fewer calls"
    QUEUE_GONE = "the queue does not exist"
    REFUSED = "the credentials are missing, expired or do not allow the call"
    NOT_OURS = "the receipt handle has expired, or the message is not hidden any more"
    INVALID = "SQS refuses the call as it is"


# Only these may be over when the same call is sent again.
PASSING: Final = frozenset((Cause.UNAVAILABLE, Cause.THROTTLED))
# After these, no call of the consumer can succeed before somebody has done something.
LASTING: Final = frozenset((Cause.QUEUE_GONE, Cause.REFUSED))


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call, or one entry of a batch call, that failed. `is_known` is False for an error that is
    none of botocore's: nobody knows in which state it has left the client."""

    cause: Cause
    code: str
    text: str
    is_known: bool = True

    def __str__(self) -> str:
        return f"{self.cause.value} ({self.code}: {self.text})"


Program = Generator[Call, Any, T]

_CAUSES: Final[dict[str, Cause]] = {
    **dict.fromkeys(
        (
            "QueueDoesNotExist",
            "NonExistentQueue",
            "QueueDeletedRecently",
        ),
        Cause.QUEUE_GONE,
    ),
    **dict.fromkeys(
        (
            "AccessDenied",
            "AccessDeniedException",
            "AuthFailure",
            "ExpiredToken",
            "ExpiredTokenException",
            "IncompleteSignature",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidSecurity",
            "KmsAccessDenied",
            "KmsDisabled",
            "KmsNotFound",
            "MissingAuthenticationToken",
            "OptInRequired",
            "SignatureDoesNotMatch",
            "UnrecognizedClientException",
            "NoCredentialsError",
            "PartialCredentialsError",
            "CredentialRetrievalError",
            "TokenRetrievalError",
            "SSOTokenLoadError",
            "UnauthorizedSSOTokenError",
        ),
        Cause.REFUSED,
    ),
    **dict.fromkeys(
        (
            "OverLimit",
            "KmsThrottled",
            "RequestLimitExceeded",
            "RequestThrottled",
            "SlowDown",
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
        ),
        Cause.THROTTLED,
    ),
    **dict.fromkeys(
        (
            "InvalidIdFormat",
            "MessageNotInflight",
            "ReceiptHandleIsInvalid",
        ),
        Cause.NOT_OURS,
    ),
}


@contextmanager
def making_client() -> Iterator[None]:
    """Around the making of a client: wrong settings leave it as ConfigurationError."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ in _WRONG_SETTINGS:
            raise ConfigurationError(f"the client of SQS cannot be made: {error}") from error
        raise


def failure_of(error: BaseException) -> CallFailed:
    """Return what an exception of a client means; boto3 and aiobotocore raise the same ones."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):  # SQS has not answered
        name = type(error).__name__
        invalid = name in ("ParamValidationError", "ValidationError")
        fallback = Cause.INVALID if invalid else Cause.UNAVAILABLE
        is_known = type(error).__module__.startswith("botocore.")
        return CallFailed(_CAUSES.get(name, fallback), name, str(error), is_known)
    described = response.get("Error", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code, text = str(described.get("Code", "")), str(described.get("Message", ""))
    return CallFailed(_cause(code, sender=400 <= status < 500, text=text), code, text)


def failure_of_entry(entry: dict[str, Any]) -> CallFailed:
    """Return what the failure of one entry of a batch call means."""
    code, text = str(entry.get("Code", "")), str(entry.get("Message", ""))
    cause = _cause(code, sender=bool(entry.get("SenderFault")), text=text)
    return CallFailed(cause, code, text)


def _cause(code: str, *, sender: bool, text: str) -> Cause:
    # Codes come with and without the prefix of the older protocol.
    known = _CAUSES.get(code.rpartition(".")[2])
    if known is not None:
        return known
    if code.endswith("InvalidParameterValue") and "not available for visibility" in text:
        return Cause.NOT_OURS  # what a standard queue answers for a message that is visible again
    return Cause.INVALID if sender else Cause.UNAVAILABLE


def find_url(queue: str) -> Program[str | CallFailed]:
    """Return the URL of a queue, which may be named by its URL, its ARN or its name."""
    if "://" in queue:
        return queue
    arguments = {"QueueName": queue}
    if queue.startswith("arn:"):
        name, account = address_of(queue)
        arguments = {"QueueName": name, "QueueOwnerAWSAccountId": account}
    found = yield Call("get_queue_url", arguments)
    return found if isinstance(found, CallFailed) else str(found["QueueUrl"])


def in_batches(entries: Sequence[E]) -> Iterator[Sequence[E]]:
    """Yield the entries in batches that one call may have."""
    for start in range(0, len(entries), BATCH_MAX):
        yield entries[start : start + BATCH_MAX]


def send_batch(
    operation: str, queue_url: str, entries: Iterable[dict[str, Any]]
) -> Program[dict[int, CallFailed]]:
    """Send one batch call, and return the failures by the position of their entries.

    What failed for a passing cause is sent once more, alone; botocore has sent the call again
    itself, but not a single entry of it.
    """
    numbered = {str(number): {**entry, "Id": str(number)} for number, entry in enumerate(entries)}
    failed = yield from _try_batch(operation, queue_url, numbered)
    again = {id: numbered[id] for id, failure in failed.items() if failure.cause in PASSING}
    if again and len(again) < len(numbered):
        failed = {id: failure for id, failure in failed.items() if id not in again}
        failed |= yield from _try_batch(operation, queue_url, again)
    return {int(id): failure for id, failure in failed.items()}


def _try_batch(
    operation: str, queue_url: str, entries: dict[str, dict[str, Any]]
) -> Program[dict[str, CallFailed]]:
    arguments = {"QueueUrl": queue_url, "Entries": list(entries.values())}
    answer = yield Call(operation, arguments)
    if isinstance(answer, CallFailed):
        return dict.fromkeys(entries, answer)
    return {str(entry["Id"]): failure_of_entry(entry) for entry in answer.get("Failed", ())}
