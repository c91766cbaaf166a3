"""Which requests are guarded, and how: one rule per kind of route, the first that fits counts.

Owns the options of a route, their defaults and limits. What a response means is in outcomes.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, TypedDict

from oncekey.core.derived_keys import checked_namespaces
from oncekey.core.duration import Duration
from oncekey.core.errors import ConfigurationError
from oncekey.core.policy import MAX_BYTES_CAP, Policy
from oncekey.http.path_readings import is_plain, readings

METHODS_DEFAULT: Final = ("POST", "PATCH")
ANY_METHOD: Final = "*"  # in the methods of a rule: all but the safe ones
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MAX_REQUEST_DEFAULT: Final = 1024 * 1024
MAX_REQUEST_CAP: Final = 1024 * 1024 * 1024
MAX_RESPONSE_DEFAULT: Final = 1024 * 1024
# What the status and the headers of a stored response may take beside its body.
HEAD_MAX_BYTES: Final = 64 * 1024
HEADERS_MAX: Final = 1_000  # ... and how many headers it may have
STORE_DOWN: Final = ("refuse", "run")
_POLICY_OPTIONS: Final = (
    "lease", "keep", "audit", "wait", "retry_safe", "require", "recover", "keep_unknown",
    "store_timeout", "recover_grace",
)  # fmt: skip
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PARAMETER = re.compile(r"\{[^{}/]*\}")
_OTHER_PARAMETER = re.compile(r"\{[^{}]*:|[<>]")  # as other routers write them


@dataclass(frozen=True)
class Rule:
    """How requests to `path` are guarded.

    path          "/charges/{id}/refunds"; `{...}` is one segment, a "*" at the end is any rest
    methods       which are guarded; "*" is every one but GET, HEAD, OPTIONS and TRACE, which always
                  pass. On a decorated view "*" is the default, in a list of rules POST and PATCH
    guarded       False lets all of them pass untouched
    required      a request without a key is refused; else it passes, unprotected
    strict        only quoted keys, as the standard has them
    namespaces    only keys in one of these: ("v2",) takes "v2:..." and nothing else
    ignore        JSON members (or form fields) that may differ between retries: "meta.sent_at"
    only          ... or the only ones that count; a body that has none of them counts whole
    headers       response headers to keep, beside the usual ones
    request_headers  request headers that are compared too, such as ("X-Tenant",)
    max_request   longer request bodies are refused with 413 before anything is claimed
    max_response  longer response bodies are given to the first caller only
    store_down    "refuse" answers 503; "run" goes on without protection, and counts it

    lease, keep, audit, wait, retry_safe, require, recover, keep_unknown, store_timeout and
    recover_grace are those of a Policy; None leaves them as the engine has them.
    """

    path: str = "*"
    methods: Sequence[str] = METHODS_DEFAULT
    guarded: bool = True
    required: bool = True
    strict: bool = False
    namespaces: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    only: Sequence[str] | None = None
    headers: Sequence[str] = ()
    request_headers: Sequence[str] = ()
    max_request: int = MAX_REQUEST_DEFAULT
    max_response: int = MAX_RESPONSE_DEFAULT
    store_down: str = "refuse"
    lease: Duration | None = None
    keep: Duration | None = None
    audit: Duration | None = None
    wait: Duration | None = None
    retry_safe: bool | None = None
    require: str | None = None
    recover: Callable[..., Any] | None = None
    keep_unknown: Duration | None = None
    store_timeout: Duration | None = None
    recover_grace: Duration | None = None
    kept: frozenset[bytes] = field(init=False, repr=False, compare=False)
    compared: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    options: dict[str, Any] = field(init=False, repr=False, compare=False)
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "methods", tuple(method.upper() for method in self.methods))
        if self.namespaces is not None:
            object.__setattr__(self, "namespaces", checked_namespaces(self.namespaces))
        given = {name: getattr(self, name) for name in _POLICY_OPTIONS}
        options = {name: value for name, value in given.items() if value is not None}
        Policy().with_options(**options)  # finds mistakes now
        options["max_bytes"] = min(self.max_response + HEAD_MAX_BYTES, MAX_BYTES_CAP)
        object.__setattr__(self, "options", options)
        object.__setattr__(
            self, "kept", frozenset(n.lower().encode("latin-1") for n in self.headers)
        )
        names = {name.lower().encode("latin-1") for name in self.request_headers}
        object.__setattr__(self, "compared", tuple(sorted(names)))
        object.__setattr__(self, "_pattern", _compiled(self.path))

    def _check(self) -> None:
        if isinstance(self.methods, str) or not all(map(_METHOD.fullmatch, self.methods)):
            raise ConfigurationError(
                f'methods={self.methods!r} must be a list of methods, such as ["POST", "PUT"], or '
                '["*"] for all but the safe ones'
            )
        safe = {method.upper() for method in self.methods} & SAFE_METHODS
        if safe or not self.methods:
            raise ConfigurationError(
                f"methods={self.methods!r}: GET, HEAD, OPTIONS and TRACE are safe to repeat and "
                "are never guarded; name others, or leave methods out"
            )
        if self.only is not None and self.ignore:
            raise ConfigurationError("give either ignore= or only=, not both")
        if self.only is not None and not self.only:
            raise ConfigurationError("only=[] names no member; leave it out to compare all of them")
        for name in ("ignore", "only", "headers", "request_headers"):
            if isinstance(getattr(self, name), str):
                raise ConfigurationError(f"{name} must be a list of names, not one text")
        if any(name.lower() == "idempotency-key" for name in self.request_headers):
            raise ConfigurationError("request_headers=: the key itself is compared in any case")
        for name, cap in (("max_request", MAX_REQUEST_CAP), ("max_response", MAX_BYTES_CAP)):
            if not 0 < getattr(self, name) <= cap:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be 1 to {cap}")
        if self.store_down not in STORE_DOWN:
            raise ConfigurationError(f"store_down={self.store_down!r} must be 'refuse' or 'run'")

    def guards(self, method: str) -> bool:
        """Whether this method, in upper case, is one of the rule's."""
        return method in self.methods or (ANY_METHOD in self.methods and method not in SAFE_METHODS)

    def fits(self, method: str, path: str) -> bool:
        return self._pattern.fullmatch(path) is not None and self.guards(method)


# What other libraries call it.
_OTHER_NAMES: Final = {
    "ttl": "keep",
    "expires": "keep",
    "expiry": "keep",
    "expiration": "keep",
    "expires_in": "keep",
    "retention": "keep",
    "lifetime": "keep",
    "timeout": "lease",
    "lock_timeout": "lease",
    "lock_ttl": "lease",
    "exclude": "ignore",
    "include": "only",
    "fields": "only",
    "enforce": "required",
    "max_body": "max_request",
    "fail_open": "store_down",
}


class RuleOptions(TypedDict, total=False):
    """The fields of a Rule but for its path, as options of a decorator, for type checkers: every
    one of them, in the same order."""

    methods: Sequence[str]
    guarded: bool
    required: bool
    strict: bool
    namespaces: Sequence[str] | None
    ignore: Sequence[str]
    only: Sequence[str] | None
    headers: Sequence[str]
    request_headers: Sequence[str]
    max_request: int
    max_response: int
    store_down: str
    lease: Duration | None
    keep: Duration | None
    audit: Duration | None
    wait: Duration | None
    retry_safe: bool | None
    require: str | None
    recover: Callable[..., Any] | None
    keep_unknown: Duration | None
    store_timeout: Duration | None
    recover_grace: Duration | None


def rule_from_options(options: Mapping[str, Any]) -> Rule:
    """A rule from the options of a decorator; an unknown name is refused with the one meant."""
    known = [item.name for item in fields(Rule) if item.init and item.name != "path"]
    unknown = sorted(options.keys() - set(known) - {"path"})
    if unknown:
        name = unknown[0]
        close = get_close_matches(name, known, n=1)
        meant = _OTHER_NAMES.get(name) or (close[0] if close else None)
        hint = f": did you mean {meant}=?" if meant else "."
        raise ConfigurationError(f"unknown option {name}{hint} Known are {', '.join(known)}")
    return Rule(**options)


class Rules:
    """All rules of an app. Where none fits, a request passes."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.all = tuple(rules) or (Rule(),)
        for rule in self.all:
            if not isinstance(rule, Rule):
                raise ConfigurationError(f"rules must be Rule objects, not {type(rule).__name__}")

    def find(self, method: str, *paths: str) -> Rule | None:
        """The rule of a guarded request, None for one that passes.

        `paths` are what the request's path may mean to a router, and each has further readings.
        Where they lead to several rules the request is guarded, and by the stricter one: a client
        must not choose its rule by the way it spells a path.
        """
        method = method.upper()  # some apps take a method in any case
        if method in SAFE_METHODS:
            return None
        if len(paths) == 1 and is_plain(paths[0]):
            found = self._first(method, paths[0])
            return found if found is not None and found.guarded else None
        read = {one for path in paths for one in readings(path)}
        found_ids = {id(self._first(method, path)) for path in read}
        guarded = [rule for rule in self.all if rule.guarded and id(rule) in found_ids]
        return min(guarded, key=lambda rule: not rule.required, default=None)

    def excludes(self, method: str, *paths: str) -> bool:
        """Whether a rule with guarded=False says that such a request passes."""
        found = [self._first(method.upper(), one) for path in paths for one in readings(path)]
        return any(rule is not None and not rule.guarded for rule in found)

    def _first(self, method: str, path: str) -> Rule | None:
        for rule in self.all:
            if rule.fits(method, path):
                return rule
        return None


def _compiled(path: str) -> re.Pattern[str]:
    if path == "*":
        return re.compile(".*", re.DOTALL)
    if not path.startswith("/") or "*" in path[:-1]:
        raise ConfigurationError(f"path={path!r} must begin with '/'; a '*' may stand at its end")
    if _OTHER_PARAMETER.search(path):
        raise ConfigurationError(
            f"path={path!r}: a parameter is one segment, {{name}}; for any rest end the path in '*'"
        )
    rest = path.endswith("*")
    pieces = _PARAMETER.split(path[:-1] if rest else path)
    pattern = "[^/]+".join(re.escape(piece) for piece in pieces)
    return re.compile(pattern + (".*" if rest else "/?"), re.DOTALL)
