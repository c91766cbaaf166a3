"""The options that every client takes, checked once, where it is made.

Owns their names, defaults and limits; what they do is elsewhere. Knows no HTTP library.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from oncekey.client.delivery import Progress
from oncekey.client.request_identity import REPLAYED_HEADERS
from oncekey.client.retry import Retry, Terms
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
FRESH_KEYS_MAX: Final = 1_000

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What frames, routes or describes a message; a key in one of these would break it.
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

    `retry`: None sends keys and never retries. `methods` are those that get a key. `header` and
    `quoted` are how the key is written. `replay_header` is where the server says `true` of a stored
    answer, beside the usual names. `namespace` marks new keys. `journal` keeps keys across a
    restart; `account` is on whose behalf, so that none takes up another's. `on_progress` is told
    what goes on. Bytes: up to `buffer_max` of an answer are read before it counts as one; bodies
    up to `body_max` are held in memory, longer ones refused.
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
    # Keys that cannot have had an effect, of requests that the library above sends on by itself:
    # after a redirect, or with credentials.
    fresh_keys: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        if self.journal is not None and (a_class or not hasattr(self.journal, "settle")):
            raise ConfigurationError(f"journal={self.journal!r} must be a Journal(path), or None")
        _check_hook(self.on_progress)
        for name in ("buffer_max", "body_max"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= BYTES_CAP:
                raise ConfigurationError(f"{name}={value!r} must be 1 to {BYTES_CAP} bytes")

    @property
    def terms(self) -> Terms | None:
        return None if self.retry is None else self.retry.terms

    @property
    def held_bytes(self) -> int:
        """How much of an answer to read before it is given on. Without retries a broken answer
        is the caller's anyway, so it need not wait for the rest; but a journal must not cross a
        key out on the head of an answer alone."""
        return 0 if self.retry is None and self.journal is None else self.buffer_max

    @property
    def replay_headers(self) -> tuple[str, ...]:
        """The names of the headers that mark an answer as a replay."""
        return REPLAYED_HEADERS + ((self.replay_header,) if self.replay_header else ())

    def remember_fresh(self, key: str) -> None:
        """The newest are kept: what sends on does so at once."""
        self.fresh_keys[key] = True
        while len(self.fresh_keys) > FRESH_KEYS_MAX:
            self.fresh_keys.pop(next(iter(list(self.fresh_keys))), None)

    def guards(self, method: str) -> bool:
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
