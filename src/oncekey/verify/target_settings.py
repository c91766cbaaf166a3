"""What a user tells about an API, from a file or from options, and the target that is made of it.

Secrets come from the environment: $NAME in the value of a header or in the URL of a database. A
header that says who calls belongs to the caller, wherever it was given, so that no report shows it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from oncekey.core.errors import ConfigurationError
from oncekey.verify import json_path
from oncekey.verify.count_query import check_query
from oncekey.verify.effect_counters import (
    HEADER_PLACE,
    CommandCounter,
    ResponseIdCounter,
    SqlCounter,
    UrlCounter,
)
from oncekey.verify.raw_connection import Origin
from oncekey.verify.target import (
    KEY_HEADER_DEFAULT,
    Caller,
    EffectCounter,
    RequestTemplate,
    Target,
    Variant,
    fill,
    new_values,
)

HeaderTexts = tuple[tuple[str, str], ...]

# A header with one of these words in its name says who calls, or proves it.
_CREDENTIAL_NAME = re.compile(
    r"auth|cookie|token|secret|passw|credential|session|signature|api-?key|access-?key"
    r"|subscription-key",
    re.IGNORECASE,
)
_CONNECTIONS_OWN = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)\}|([A-Za-z_]\w*))")
_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*@")
_BAD_VALUE = "oncekey-verify-bad-credentials"
# Everything that may stand in a request target, and the braces of placeholders.
_PATH_CHARACTERS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


@dataclass(slots=True)
class RequestSettings:
    """A request, or what differs from the main one: what is None is taken from there."""

    method: str | None = None
    path: str | None = None
    headers: HeaderTexts | None = None
    body: str | None = None


@dataclass(slots=True)
class EffectSettings:
    """How effects are counted: one of url, command, sql and ids."""

    url: str | None = None
    path: str = ""
    match: str = ""
    headers: HeaderTexts | None = None
    command: tuple[str, ...] = ()
    sql: str | None = None
    database: str | None = None
    ids: tuple[str, ...] = ()


@dataclass(slots=True)
class OpenAPISettings:
    """An operation of an OpenAPI document whose requests are generated, and what cannot be.

    document          a file or a URL; without one, the request is the user's own
    operation         an operationId, or a method and a path: "POST /charges"
    path_parameters   values of parameters in the path, such as the id of something that exists
    fields            members of the JSON body with the values they are to have; they may have
                      placeholders, such as {"order": "{{unique}}"}
    """

    document: str | None = None
    operation: str | None = None
    path_parameters: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TargetSettings:
    """Everything that a user can tell about an API.

    callers      headers by who sends them: main, other, bad; without bad, it is made from main
    effects      without it, ids in responses are compared
    key_header   without it, it is the usual one
    """

    url: str | None = None
    request: RequestSettings = field(default_factory=RequestSettings)
    callers: dict[str, HeaderTexts] = field(default_factory=dict)
    variants: dict[Variant, RequestSettings] = field(default_factory=dict)
    effects: EffectSettings = field(default_factory=EffectSettings)
    key_header: str | None = None
    quoted_key: bool = False
    keep_seconds: float | None = None
    slow_seconds: float | None = None
    openapi: OpenAPISettings = field(default_factory=OpenAPISettings)

    def target(
        self,
        environment: Mapping[str, str] = os.environ,
        generated: RequestTemplate | None = None,
    ) -> Target:
        """Return the target. Raises ConfigurationError.

        `generated` is the main request if it comes from an OpenAPI document.
        """
        if self.url is None:
            raise ConfigurationError("no URL: give the one that the request is sent to")
        origin, path = split_url(self.url)
        callers, plain = self._callers(self.request.headers or (), environment)
        main = RequestTemplate(
            (self.request.method or "POST").upper(),
            path if self.request.path is None else clean_path(self.request.path),
            _with_content_type(plain, self.request.body or ""),
            self.request.body or "",
        )
        if generated is not None:
            main = replace(generated, headers=(*generated.headers, *plain))
        return Target(
            origin=origin,
            variants={
                Variant.MAIN: main,
                **{kind: self._variant(main, told, kind) for kind, told in self.variants.items()},
            },
            caller=callers.get("main", Caller("caller")),
            other_caller=callers.get("other"),
            bad_caller=callers.get("bad"),
            key_header=self._key_header(),
            quoted_key=self.quoted_key,
            effects=self._counter(origin, callers, environment),
            keep_seconds=self.keep_seconds,
            slow_seconds=self.slow_seconds,
        )

    def _key_header(self) -> str:
        name = KEY_HEADER_DEFAULT if self.key_header is None else self.key_header
        if not _TOKEN.fullmatch(name):
            raise ConfigurationError(f"{name!r} cannot be the name of a header")
        return name

    def _callers(
        self, headers: HeaderTexts, environment: Mapping[str, str]
    ) -> tuple[dict[str, Caller], HeaderTexts]:
        """Return the callers, and the headers of the request that say nothing about a caller."""
        names = {name.lower() for lines in self.callers.values() for name, _ in lines}
        own = list(self.callers.get("main", ()))
        plain = []
        for name, text in headers:
            self._check_header(name)
            if name.lower() in names or is_credential(name) or _VARIABLE.search(text):
                own.append((name, text))
            else:
                plain.append((name, text))
        told = {**self.callers, **({"main": tuple(own)} if own else {})}
        shown = {"main": "caller", "other": "other caller", "bad": "bad caller"}
        callers = {
            who: Caller(shown[who], tuple((n, expand(t, environment)) for n, t in lines))
            for who, lines in told.items()
        }
        if "main" in callers and "bad" not in callers:
            callers["bad"] = Caller(shown["bad"], _spoiled(callers["main"].headers))
        for caller in callers.values():
            for name, text in caller.headers:
                self._check_header(name)
                if _CONTROL.search(text):
                    # The value is not repeated: it may be a token.
                    raise ConfigurationError(
                        f"{name} of the {caller.name}: its value has a line break, or another "
                        "control character"
                    )
        return callers, tuple(plain)

    def _check_header(self, name: str) -> None:
        if not _TOKEN.fullmatch(name):
            raise ConfigurationError(f"{name!r} cannot be the name of a header")
        if name.lower() == self._key_header().lower():
            raise ConfigurationError(
                f"{name}: leave it out, each operation gets a key of its own (quoted_key, or "
                "--quoted-key, sends keys in quotes)"
            )
        if name.lower() in _CONNECTIONS_OWN:
            raise ConfigurationError(f"{name}: leave it out, the verifier writes it by itself")

    def _variant(
        self, main: RequestTemplate, told: RequestSettings, kind: Variant
    ) -> RequestTemplate:
        for name, _ in told.headers or ():
            self._check_header(name)
            if is_credential(name):
                raise ConfigurationError(f"variant {kind}: {name} belongs to a caller")
        body = main.body if told.body is None else told.body
        if told.headers is not None:
            headers = _with_content_type(told.headers, body)
        else:
            headers = main.headers
        return RequestTemplate(
            main.method if told.method is None else told.method.upper(),
            main.path if told.path is None else clean_path(told.path),
            headers,
            body,
        )

    def _counter(
        self, origin: Origin, callers: Mapping[str, Caller], environment: Mapping[str, str]
    ) -> EffectCounter:
        told = self.effects
        if sum(map(bool, (told.url, told.command, told.sql, told.ids))) > 1:
            raise ConfigurationError("effects are counted in one way: url, command, sql or ids")
        if told.url:
            at, path = split_url(urljoin(f"{origin}/", told.url))
            json_path.parse(told.path)
            caller = callers.get("main", Caller("counter"))
            if told.headers is not None:
                lines = ((name, expand(text, environment)) for name, text in told.headers)
                caller = Caller("counter", tuple(lines))
            elif at != origin:
                caller = Caller("counter")  # a token is for the API that it was given for
            return UrlCounter(at, path, told.path, told.match, caller)
        if told.command:
            return CommandCounter(told.command)
        if told.sql:
            if told.database is None:
                raise ConfigurationError("a query needs a database: sqlite:///... or postgresql://")
            check_query(told.database, told.sql)
            database = expand(told.database, environment)
            return SqlCounter(database, _PASSWORD.sub(r"\1***@", told.database), told.sql)
        if told.ids:
            for place in told.ids:
                if not place.startswith(HEADER_PLACE):
                    json_path.parse(place)
            return ResponseIdCounter(told.ids)
        return ResponseIdCounter()


def is_credential(name: str) -> bool:
    """True if a header of this name says who calls."""
    return _CREDENTIAL_NAME.search(name) is not None


def split_url(url: str) -> tuple[Origin, str]:
    """Return where a URL leads, and its path with the query. Raises ConfigurationError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"{url}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{url} is not a URL such as http://127.0.0.1:8000/charges")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("credentials in a URL: give them as a header of the caller")
    if not parts.hostname.isascii():
        raise ConfigurationError(f"{parts.hostname}: write the host in its ASCII form (xn--...)")
    usual = {"http": 80, "https": 443}[parts.scheme]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Origin(parts.scheme, parts.hostname, port or usual), clean_path(path)


def clean_path(path: str) -> str:
    """Return a path as it is sent: what may not stand in a request's first line is escaped."""
    if not path.startswith("/"):
        raise ConfigurationError(f"the path {path!r} does not begin with /")
    return quote(path, safe=_PATH_CHARACTERS)


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Return a text with $NAME and ${NAME} replaced from the environment; $$ is a dollar."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        if not environment.get(name):
            raise ConfigurationError(f"the environment variable {name} is not set")
        return environment[name]

    return _VARIABLE.sub(value, text)


def _with_content_type(headers: HeaderTexts, body: str) -> HeaderTexts:
    """Return the headers with a Content-Type, as the body looks, if there is none."""
    if not body or any(name.lower() == "content-type" for name, _ in headers):
        return headers
    try:
        json.loads(fill(body, new_values("key")))
    except ValueError:
        return (*headers, ("Content-Type", "application/x-www-form-urlencoded"))
    return (*headers, ("Content-Type", "application/json"))


def _spoiled(headers: HeaderTexts) -> HeaderTexts:
    """Return the headers with credentials that nobody has; a scheme such as Bearer stays."""
    some_are_named_so = any(is_credential(name) for name, _ in headers)
    return tuple(
        (name, f"{text.split()[0]} {_BAD_VALUE}" if len(text.split()) == 2 else _BAD_VALUE)
        if not some_are_named_so or is_credential(name)
        else (name, text)
        for name, text in headers
    )
