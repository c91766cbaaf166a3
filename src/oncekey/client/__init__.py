"""HTTP clients that send each request under one key, and retry it under that key if it is safe.

    from oncekey.client import IdempotentTransport          # httpx.Client(transport=...)
    from oncekey.client import AsyncIdempotentTransport     # httpx.AsyncClient(transport=...)
    from oncekey.client import IdempotentAdapter            # requests: session.mount(...)

All public names are here. A name that needs an HTTP library is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from oncekey.client.delivery import Delivery, Progress, ProgressKind, delivery_of
from oncekey.client.errors import NotSent, RetriesExhausted
from oncekey.client.retry_options import Retry
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

# The module of a lazily imported name, and the extra that installs what it needs.
_LAZY: Final = {
    "AsyncIdempotentTransport": ("httpx.transport", "httpx"),
    "IdempotentAdapter": ("requests.adapter", "requests"),
    "IdempotentTransport": ("httpx.transport", "httpx"),
    "Journal": ("journal", ""),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _LAZY[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("oncekey"):
            raise
        raise ConfigurationError(
            f"{name} needs {error.name}, which is not installed: pip install 'oncekey[{extra}]'"
        ) from error
