"""The options that every client takes, checked once, when the client is made.

This module owns the names, defaults and bounds of the options, and knows no HTTP library.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from oncekey.client.delivery import Progress
from oncekey.client.retry_options import Retry, RetryLimits
from oncekey.core.derived_keys import checked_namespace
from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.identity import check_text

if TYPE_CHECKING:
    from oncekey.client.journal import Journal

METHODS_DEFAULT: Final = ("POST", "PATCH")
BUFFER_MAX_DEFAULT: Final = 16 * 1024 * 1024
BODY_MAX_DEFAULT: Final = 16 * 1024 * 1024
BYTES_CAP: Final = 1024 * 1024 * 1024
ACCOUNT_MAX_CHARS: Final = 255
UNUSED_KEYS_MAX: Final = 1_000
REPLAY_HEADERS: Final = ("X-Idempotency-Replayed", "Idempotent-Replayed")

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# These frame, route or describe a message; a key in one of them would break it.
_TAKEN_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "date",
        "expect",
        "host",
        "keep-alive",
        "oncekey-intent",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)


class Options(TypedDict, total=False):
    """The options of a client, by name; see `Settings` for what they mean."""

    retry: Retry | None
    methods: Collection[str]
    header: str
    quoted: bool
    replay_header: str | None
    namespace: str | None
    account: str
    journal: Journal | None
    on_progress: Callable[[Progress], object] | None
    buffer_max: int
    body_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one client sends.

    * `retry`: when to try again; None sends keys and never retries.
    * `methods`: those whose requests get a key.
    * `header`, `quoted`: how the key is written.
    * `replay_header`: where the server says `true` of a stored response, beside the usual names.
    * `namespace`: a mark on new keys.
    * `journal`: keeps keys across a restart.
    * `account`: on whose behalf the client sends, so that it takes no key of another account.
    * `on_progress`: a function that is called with each `Progress`.
    * `buffer_max`: up to so many bytes of a response are read before it counts as one.
    * `body_max`: request bodies are held in memory up to so many bytes, and refused beyond.
    """

    retry: Retry | None = field(default_factory=Retry)
    methods: Collection[str] = METHODS_DEFAULT
    header: str = "Idempotency-Key"
    quoted: bool = True
    replay_header: str | None = None
    namespace: str | None = None
    account: str = ""
    journal: Journal | None = None
    on_progress: Callable[[Progress], object] | None = None
    buffer_max: int = BUFFER_MAX_DEFAULT
    body_max: int = BODY_MAX_DEFAULT
    # --- computed ---
    limits: RetryLimits | None = field(init=False, repr=False, compare=False)
    replay_headers: tuple[str, ...] = field(init=False, repr=False, compare=False)
    # How many bytes of a response are read before the caller gets it. Without retries a broken
    # response is the caller's anyway, so nothing is read ahead; but a journal must not close an
    # entry on the head of a response alone.
    read_ahead: int = field(init=False, repr=False, compare=False)
    # Keys that cannot have had an effect yet, of requests that the HTTP library sends on by itself:
    # after a redirect, or with credentials.
    unused_keys: dict[str, bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise ConfigurationError(f"retry={self.retry!r} must be a Retry(...), or None")
        object.__setattr__(self, "methods", _methods(self.methods))
        if not isinstance(self.header, str) or not _TOKEN.fullmatch(self.header):
            raise ConfigurationError(f"header={self.header!r} is not the name of a header")
        if self.header.lower() in _TAKEN_HEADERS:
            raise ConfigurationError(
                f"header={self.header!r} has another meaning in HTTP, or for this client; name "
                "the one in which the server looks for keys"
            )
        named = self.replay_header
        if named is not None and not (isinstance(named, str) and _TOKEN.fullmatch(named)):
            raise ConfigurationError(f"replay_header={named!r} is not the name of a header")
        if type(self.quoted) is not bool:
            raise ConfigurationError(f"quoted={self.quoted!r} must be True or False")
        if self.namespace is not None:
            try:
                checked_namespace(self.namespace)
            except InvalidKey as error:
                raise ConfigurationError(f"namespace={self.namespace!r}: {error}") from error
        try:
            check_text("account", self.account, 0, ACCOUNT_MAX_CHARS)
        except InvalidKey as error:
            raise ConfigurationError(f"account={self.account!r}: {error}") from error
        a_class = isinstance(self.journal, type)
        if self.journal is not None and (a_class or not hasattr(self.journal, "entry_for")):
            raise ConfigurationError(f"journal={self.journal!r} must be a Journal(path), or None")
        _check_hook(self.on_progress)
        for name in ("buffer_max", "body_max"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= BYTES_CAP:
                raise ConfigurationError(f"{name}={value!r} must be 1 to {BYTES_CAP} bytes")
        self._compute()

    def _compute(self) -> None:
        named = () if self.replay_header is None else (self.replay_header,)
        reads_nothing = self.retry is None and self.journal is None
        object.__setattr__(self, "limits", None if self.retry is None else self.retry.limits)
        object.__setattr__(self, "replay_headers", REPLAY_HEADERS + named)
        object.__setattr__(self, "read_ahead", 0 if reads_nothing else self.buffer_max)

    def remember_unused(self, key: str) -> None:
        """Remember a key that is about to be sent on. Only the newest are kept, because that
        happens at once."""
        self.unused_keys[key] = True
        while len(self.unused_keys) > UNUSED_KEYS_MAX:
            self.unused_keys.pop(next(iter(list(self.unused_keys))), None)

    def guards(self, method: str) -> bool:
        """True if requests with this method get a key."""
        return method.upper() in self.methods


def _methods(given: Any) -> frozenset[str]:
    try:
        names = None if isinstance(given, str) else list(given)
    except TypeError:
        names = None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"methods={given!r} must be a list of names")
    for name in names:
        if not _TOKEN.fullmatch(name):
            raise ConfigurationError(f"methods={given!r}: {name!r} is not the name of a method")
    methods = frozenset(name.upper() for name in names)
    if methods & _SAFE or not methods:
        raise ConfigurationError(
            f"methods={given!r}: POST, PATCH, PUT and DELETE do something that a key can guard; "
            "safe methods need none"
        )
    return methods


def _check_hook(hook: object) -> None:
    if hook is None:
        return
    called = getattr(type(hook), "__call__", None)  # noqa: B004, the method itself is looked at
    if not callable(hook) or any(map(inspect.iscoroutinefunction, (hook, called))):
        raise ConfigurationError(
            "on_progress must be a plain function of one argument, not a coroutine: it is called "
            "in the middle of a request and must return at once"
        )
