"""The rules that say which requests are guarded, and how.

Servers pass on the path that the client wrote, and routers interpret it differently: some merge
slashes, some resolve dots, some accept a whole URL, and a pattern that ends in `$` also matches
before a final line break. A rule that was matched against the text only could be bypassed by
`//pay`. Therefore a request is guarded if a rule matches any normal form of its path.

Owns the options of a rule, their defaults and limits, and the choice of a request's rule. Which
responses are stored is in stored_responses.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, TypedDict
from urllib.parse import unquote, urlparse

from oncekey.core.derived_keys import checked_namespaces
from oncekey.core.duration import Duration
from oncekey.core.errors import ConfigurationError
from oncekey.core.policy import MAX_BYTES_CAP, Policy

METHODS_DEFAULT: Final = ("POST", "PATCH")
ANY_METHOD: Final = "*"  # in a rule's methods: every one but the safe methods
ANY_PATH: Final = "*"
_USUAL_METHODS: Final = frozenset({"POST", "PATCH", "PUT", "DELETE"})
_PATHS_REMEMBERED: Final = 1_000
_REMEMBERED_MAX_CHARS: Final = 200  # of a path
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MAX_REQUEST_DEFAULT: Final = 1024 * 1024
MAX_REQUEST_CAP: Final = 1024 * 1024 * 1024
MAX_RESPONSE_DEFAULT: Final = 1024 * 1024
HEAD_MAX_BYTES: Final = 64 * 1024  # of the status and the headers of a stored response
HEADERS_MAX: Final = 1_000  # ... and their number
STORE_DOWN: Final = ("refuse", "run")
_POLICY_OPTIONS: Final = (
    "lease", "keep", "audit", "wait", "retry_safe", "require", "recover", "keep_unknown",
    "store_timeout", "recover_grace",
)  # fmt: skip
# The request headers that are read for every rule.
READ_HEADERS: Final = frozenset(
    {b"idempotency-key", b"content-length", b"content-type", b"content-encoding"}
)
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SLASHES = re.compile(r"//+")
_PARAMETER = re.compile(r"\{[^{}/]*\}")
_OTHER_PARAMETER = re.compile(r"\{[^{}]*:|[<>]")  # the syntax of other routers


@dataclass(frozen=True)
class Rule:
    """How requests to `path` are guarded. Of several rules the first that matches applies.

    path          "/charges/{id}/refunds"; `{...}` matches one segment, a "*" at the end any rest
    methods       the guarded methods; "*" is all but GET, HEAD, OPTIONS and TRACE, which are never
                  guarded. The default of a decorated view is "*", of a rule POST and PATCH
    guarded       False leaves the matching requests unguarded
    required      whether a request without a key is refused; if not, it runs unprotected
    strict        accept quoted keys only, as the standard has them
    namespaces    accept keys of these namespaces only: ("v2",) accepts "v2:..."
    ignore        JSON members or form fields that may differ between retries: "meta.sent_at"
    only          compare these members or fields only; a body without any of them is compared whole
    headers       response headers to store beside the usual ones
    request_headers  request headers to compare, such as ("X-Tenant",)
    max_request   longer request bodies are refused with 413 before the key is claimed
    max_response  longer response bodies reach the first caller only; they are not stored
    store_down    "refuse" sends 503 while the store is down; "run" runs the request unprotected,
                  and counts it

    lease, keep, audit, wait, retry_safe, require, recover, keep_unknown, store_timeout and
    recover_grace are those of a Policy; None leaves the engine's.
    """

    path: str = ANY_PATH
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
    stored_header_names: frozenset[bytes] = field(init=False, repr=False, compare=False)
    compared_header_names: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    options: dict[str, Any] = field(init=False, repr=False, compare=False)
    max_request_digits: int = field(init=False, repr=False, compare=False)
    read_header_names: frozenset[bytes] = field(init=False, repr=False, compare=False)
    matches_path: Callable[[str], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "methods", tuple(method.upper() for method in self.methods))
        if self.namespaces is not None:
            object.__setattr__(self, "namespaces", checked_namespaces(self.namespaces))
        values = {name: getattr(self, name) for name in _POLICY_OPTIONS}
        options = {name: value for name, value in values.items() if value is not None}
        Policy().with_options(**options)  # raises for invalid values
        options["max_bytes"] = min(self.max_response + HEAD_MAX_BYTES, MAX_BYTES_CAP)
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "max_request_digits", len(str(self.max_request)))
        stored = frozenset(name.lower().encode("latin-1") for name in self.headers)
        object.__setattr__(self, "stored_header_names", stored)
        compared = {name.lower().encode("latin-1") for name in self.request_headers}
        object.__setattr__(self, "compared_header_names", tuple(sorted(compared)))
        object.__setattr__(self, "read_header_names", READ_HEADERS | compared)
        object.__setattr__(self, "matches_path", _compiled(self.path).fullmatch)

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
        """Whether the rule guards this method, which is in upper case."""
        return method in self.methods or (ANY_METHOD in self.methods and method not in SAFE_METHODS)


# Names that other libraries have for our options.
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
    """The options of a decorator, for type checkers: every field of a Rule but its path, in the
    same order."""

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
    """Make a rule of a decorator's options. The error for an unknown name suggests a known one."""
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
    """All rules of an app. A request that none of them matches is not guarded."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.all = tuple(rules) or (Rule(),)
        for rule in self.all:
            if not isinstance(rule, Rule):
                raise ConfigurationError(f"rules must be Rule objects, not {type(rule).__name__}")
        self._found: dict[tuple[str, ...], Rule | None] = {}  # by method and path

    def find(self, method: str, *paths: str) -> Rule | None:
        """Return the rule that guards a request, or None if no rule does.

        `paths` are the paths that a router may take the request's path for, and each has further
        normal forms. If they match several rules, the request is guarded, and by a rule that
        requires a key if there is one: a client must not choose its rule by the way it spells a
        path.
        """
        try:
            return self._found[method, *paths]
        except KeyError:
            rule = self._find_any(method.upper(), paths)  # some apps accept methods in any case
        # What comes again and again is remembered.
        if len(paths) == 1 and method in _USUAL_METHODS and len(paths[0]) <= _REMEMBERED_MAX_CHARS:
            if len(self._found) >= _PATHS_REMEMBERED:
                self._found.clear()  # by a client that asks for many paths, or an app with ids
            self._found[method, *paths] = rule
        return rule

    def _find_any(self, method: str, paths: tuple[str, ...]) -> Rule | None:
        if method in SAFE_METHODS:
            return None
        if len(paths) == 1 and _is_plain(paths[0]):
            found = self._first(method, paths[0])
            return found if found is not None and found.guarded else None
        all_paths = {form for path in paths for form in _normal_forms(path)}
        matching_ids = {id(self._first(method, path)) for path in all_paths}
        guarded = [rule for rule in self.all if rule.guarded and id(rule) in matching_ids]
        return min(guarded, key=lambda rule: not rule.required, default=None)

    def excludes(self, method: str, *paths: str) -> bool:
        """Whether such a request is unguarded on purpose, by a rule with guarded=False."""
        all_paths = {form for path in paths for form in _normal_forms(path)}
        matching = [self._first(method.upper(), path) for path in all_paths]
        return any(rule is not None and not rule.guarded for rule in matching)

    def _first(self, method: str, path: str) -> Rule | None:
        for rule in self.all:
            if rule.guards(method) and rule.matches_path(path) is not None:
                return rule
        return None


def _compiled(path: str) -> re.Pattern[str]:
    if path == ANY_PATH:
        return re.compile(".*", re.DOTALL)
    if not path.startswith("/") or "*" in path[:-1]:
        raise ConfigurationError(f"path={path!r} must begin with '/'; a '*' may stand at its end")
    if _OTHER_PARAMETER.search(path):
        raise ConfigurationError(
            f"path={path!r}: a parameter is one segment, {{name}}; for any rest end the path in '*'"
        )
    rest = path.endswith("*")
    pieces = [re.escape(piece) for piece in _PARAMETER.split(path[:-1] if rest else path)]
    pattern = pieces[0]
    # Of "{a}-{b}-{c}" each "-" is looked for once: the first one found leaves most to the rest, so
    # another could not match better. Trying all of them takes minutes on a path of many "-".
    for piece in pieces[1:-1]:
        pattern += f"(?>[^/]+?{piece})"
    if len(pieces) > 1:
        pattern += "[^/]+" + pieces[-1]
    return re.compile(pattern + (".*" if rest else "/?"), re.DOTALL)


# --- normal forms of a path -----------------------------------------------------------------------


def _is_plain(path: str) -> bool:
    """Whether a path is its only normal form, as nearly all are: no step below would change it."""
    return (
        path[:1] == "/"
        and "//" not in path
        and "/." not in path
        and "%" not in path
        and path[-1:] != "\n"
    )


def _normal_forms(path: str) -> tuple[str, ...]:
    """The path, and every other path that a router may take it for."""
    if _is_plain(path):
        return (path,)
    paths = dict.fromkeys([path])
    for step in (_without_origin, _without_line_end, unquote, _rooted, _merged, _resolved):
        paths.update(dict.fromkeys([step(one) for one in paths]))
    return tuple(paths)


def _without_origin(path: str) -> str:
    """The path of a request whose target is a whole URL, without the URL's parameters."""
    if path.startswith("/"):
        return path
    try:
        return urlparse(path).path
    except ValueError:  # not a URL either
        return path


def _without_line_end(path: str) -> str:
    return path.removesuffix("\n")


def _rooted(path: str) -> str:
    return path if path.startswith("/") else "/" + path


def _merged(path: str) -> str:
    return _SLASHES.sub("/", path)


def _resolved(path: str) -> str:
    """The path with its `.` and `..` segments resolved."""
    if "/." not in path:
        return path
    kept: list[str] = []
    parts = path.split("/")
    for part in parts:
        if part == "..":
            del kept[-1:]  # and no copy of the rest, which a stranger makes long
            kept = kept or [""]
        elif part != ".":
            kept.append(part)
    if parts[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept) or "/"
