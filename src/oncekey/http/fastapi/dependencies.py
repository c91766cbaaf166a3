"""The running attempt as a FastAPI dependency.

Dependencies are solved before a key is looked at, so what they get is a promise of the attempt; the
endpoint itself is given the attempt. Owns that promise and nothing else.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import Depends, Request

from oncekey.core.errors import ConfigurationError
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.http.asgi import attempt_of


class Promised:
    """Stands for the attempt until there is one; then all of its members are the attempt's."""

    def __init__(self, request: Request, *, optional: bool = False) -> None:
        self._request = request
        self._optional = optional

    def kept(self) -> AsyncAttempt | None:
        attempt = attempt_of(self._request)
        if attempt is None and not self._optional:
            raise ConfigurationError(
                "no attempt is running: this request has no key, or the endpoint was not reached "
                "yet. Where keys are optional take an OptionalAttempt"
            )
        return attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kept(), name)


def _current(request: Request) -> AsyncAttempt:
    return cast(AsyncAttempt, Promised(request))


def _optional(request: Request) -> AsyncAttempt | None:
    return cast(AsyncAttempt, Promised(request, optional=True))


# The attempt an endpoint runs in: for steps, child keys and the fence.
CurrentAttempt = Annotated[AsyncAttempt, Depends(_current)]
# The same where a key is optional: None without one. For the endpoint's own signature only.
OptionalAttempt = Annotated[AsyncAttempt | None, Depends(_optional)]


def with_attempts(values: dict[str, Any]) -> dict[str, Any]:
    """What an endpoint is called with, its promises kept."""
    return {
        name: value.kept() if isinstance(value, Promised) else value
        for name, value in values.items()
    }
