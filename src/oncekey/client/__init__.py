"""The client side: requests that are retried under one key, and keys that travel downstream.

    from oncekey.client import IdempotentTransport          # httpx.Client(transport=...)
    from oncekey.client import AsyncIdempotentTransport     # httpx.AsyncClient(transport=...)
    from oncekey.client import IdempotentAdapter            # requests: session.mount(...)

Everything public is here, by name. What needs an HTTP library is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from oncekey.client.delivery import Delivery, Progress, ProgressKind, delivery_of
from oncekey.client.errors import NotSent, RetriesExhausted
from oncekey.client.retry import Retry
from oncekey.core.errors import ConfigurationError

if TYPE_CHECKING:
    from oncekey.client.httpx.transport import AsyncIdempotentTransport, IdempotentTransport
    from oncekey.client.journal import Journal
    from oncekey.client.requests.adapter import IdempotentAdapter

__all__ = [
    "AsyncIdempotentTransport",
    "Delivery",
    "IdempotentAdapter",
    "IdempotentTransport",
    "Journal",
    "NotSent",
    "Progress",
    "ProgressKind",
    "RetriesExhausted",
    "Retry",
    "delivery_of",
]

# Where a name is, and which extra brings what it needs.
_LATER: Final = {
    "AsyncIdempotentTransport": ("httpx.transport", "httpx"),
    "IdempotentAdapter": ("requests.adapter", "requests"),
    "IdempotentTransport": ("httpx.transport", "httpx"),
    "Journal": ("journal", ""),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _LATER[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("oncekey"):
            raise
        raise ConfigurationError(
            f"{name} needs {error.name}, which is not installed: pip install 'oncekey[{extra}]'"
        ) from error
