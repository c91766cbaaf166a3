"""What the run of an app comes to, whether it is awaited or not: an outcome to store, or none.

Owns what the adapters of both colours decide in the same way around a run. Pure: no engine, no
loop, no server.
"""

from __future__ import annotations

from typing import Final

from oncekey.core.errors import ConfigurationError, NotStarted
from oncekey.core.identity import SCOPE_MAX_CHARS
from oncekey.core.policy import Policy
from oncekey.http.message import Response
from oncekey.http.outcomes import is_stored, to_store
from oncekey.http.rules import Rule

ATTEMPT: Final = "oncekey.attempt"  # where a handler finds its attempt, in the scope or environ


class Unstored(NotStarted):
    """The app answered with something that ends no key; its response goes out all the same."""


class Incomplete(RuntimeError):
    """The app ended in the middle of its response. Nobody can tell what it did."""


def outcome(response: Response, rule: Rule, policy: Policy) -> Response:
    """What is stored of the app's response. Raises Unstored where it ends no key."""
    retry_safe = policy.retry_safe if rule.retry_safe is None else rule.retry_safe
    if not is_stored(response.status, response.headers, retry_safe=retry_safe):
        raise Unstored
    return to_store(response, rule.kept, rule.max_response)


def check_caller(caller: object) -> None:
    """Whether this can be a `caller=` at all."""
    if not callable(caller):
        raise ConfigurationError(
            "caller= must be a function that gives the verified principal of a request: keys "
            "belong to callers, and one's answers must never reach another"
        )


def principal(found: object) -> str:
    """What a `caller=` gave, "" for nobody."""
    if found is not None and not isinstance(found, str):
        raise TypeError(f"caller= must give text or None, not a {type(found).__name__}")
    if found and not (len(found) <= SCOPE_MAX_CHARS and found.isprintable()):
        raise ValueError(
            f"caller= gave {len(found)} characters; what can be kept are 1 to {SCOPE_MAX_CHARS}, "
            "all printable"
        )
    return found or ""
