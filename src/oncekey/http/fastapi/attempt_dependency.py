"""The running attempt as a FastAPI dependency.

Dependencies are solved before the key is claimed, so a dependency gets a proxy of the attempt. The
endpoint itself is called with the attempt. Owns the proxy.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import Depends, Request

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.http.asgi import attempt_of


class AttemptProxy:
    """Stands for the attempt of a request. It has the attempt's members as soon as that runs."""

    def __init__(self, request: Request, *, optional: bool = False) -> None:
        self._request = request
        self._optional = optional

    def resolve(self) -> AsyncAttempt | None:
        attempt = attempt_of(self._request)
        if attempt is None and not self._optional:
            raise ConfigurationError(
                "no attempt is running: this request has no key, or the endpoint was not reached "
                "yet. Where keys are optional take an OptionalAttempt"
            )
        return attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.resolve(), name)


def _current(request: Request) -> AsyncAttempt:
    return cast(AsyncAttempt, AttemptProxy(request))


def _optional(request: Request) -> AsyncAttempt | None:
    return cast(AsyncAttempt, AttemptProxy(request, optional=True))


# The attempt an endpoint runs in: for steps, child keys and the fence.
CurrentAttempt = Annotated[AsyncAttempt, Depends(_current)]
# The same where a key is optional: None without one. For the endpoint's own signature only.
OptionalAttempt = Annotated[AsyncAttempt | None, Depends(_optional)]


def with_attempts(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an endpoint, each proxy replaced by its attempt."""
    return {
        name: value.resolve() if isinstance(value, AttemptProxy) else value
        for name, value in values.items()
    }
