"""Reads the TOML file that tells about an API, and says exactly what is wrong in one.

The file's tables are those of FILE_KEYS; docs/reference/verify.md lists them for users.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from oncekey.core.duration import microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.verify.profile import PROFILES
from oncekey.verify.target import Variant
from oncekey.verify.target_settings import (
    EffectSettings,
    HeaderTexts,
    OpenAPISettings,
    RequestSettings,
    TargetSettings,
)

FILE_MAX_BYTES = 1_048_576

_REQUEST_KEYS = ("method", "path", "headers", "body", "json", "body_file")
# Table -> its keys; "" is the top of the file.
FILE_KEYS: Mapping[str, tuple[str, ...]] = {
    "": (
        *("url", "profile", "key_header", "quoted_key", "keep", "slow", "only", "skip"),
        *("request", "callers", "variants", "effects", "limits", "openapi"),
    ),
    "request": tuple(key for key in _REQUEST_KEYS if key != "path"),
    "callers": ("main", "other", "bad"),
    "variants": tuple(kind for kind in Variant if kind is not Variant.MAIN),
    "variants.*": _REQUEST_KEYS,
    "effects": ("url", "path", "match", "headers", "command", "sql", "database", "ids"),
    "openapi": ("document", "operation", "path_parameters", "fields"),
    "limits": ("requests", "concurrency", "timeout", "patience", "total"),
}


@dataclass(slots=True)
class FileSettings:
    """What a file says: of the API, and of how it is to be verified.

    limits   by the names of `Limits`; only those that the file has
    """

    target: TargetSettings = field(default_factory=TargetSettings)
    profile: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)


def read_target_file(path: Path) -> FileSettings:
    """Return what the file says. Raises ConfigurationError with file, table and key."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    if len(content) > FILE_MAX_BYTES:
        raise ConfigurationError(f"{path}: longer than {FILE_MAX_BYTES:,} bytes")
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from error
    return _settings(_Table(path, "", document, FILE_KEYS[""]))


class _Table:
    """One table of the file; its errors name the file, the table and the key."""

    def __init__(
        self, file: Path, name: str, content: Mapping[str, Any], allowed: Sequence[str]
    ) -> None:
        self.file = file
        self.name = name
        self.content = content
        unknown = next((key for key in content if key not in allowed), None)
        if unknown is not None:
            self.fail(unknown, f"unknown; here are allowed: {', '.join(allowed)}")

    def fail(self, key: str, what: str) -> NoReturn:
        table = f"[{self.name}] " if self.name else ""
        raise ConfigurationError(f"{self.file}: {table}{key}: {what}")

    def text(self, key: str) -> str | None:
        value = self.content.get(key)
        if value is not None and not isinstance(value, str):
            self.fail(key, f"a text is expected, not {value!r}")
        return value

    def flag(self, key: str) -> bool:
        value = self.content.get(key, False)
        if not isinstance(value, bool):
            self.fail(key, f"true or false is expected, not {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.fail(key, f"a list of texts is expected, not {value!r}")
        return tuple(value)

    def seconds(self, key: str) -> float | None:
        value = self.text(key)
        if value is None:
            return None
        try:
            return microseconds(value, name=key) / 1_000_000
        except ConfigurationError:
            self.fail(key, f'a duration such as "2s" or "500ms" is expected, not {value!r}')

    def whole(self, key: str) -> int | None:
        value = self.content.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            self.fail(key, f"a whole number is expected, not {value!r}")
        return value

    def headers(self, key: str) -> HeaderTexts | None:
        """Header lines by name; a list gives several lines of one name."""
        value = self.content.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, f'a table is expected, such as {{ Accept = "*/*" }}, not {value!r}')
        lines = []
        for name, text in value.items():
            texts = text if isinstance(text, list) else [text]
            for one in texts:
                if not isinstance(one, str):
                    self.fail(f"{key}.{name}", f"a text is expected, not {one!r}")
                lines.append((name, one))
        return tuple(lines)

    def table(self, key: str, allowed: Sequence[str]) -> _Table:
        value = self.content.get(key, {})
        name = f"{self.name}.{key}" if self.name else key
        if not isinstance(value, dict):
            self.fail(key, f"a table [{name}] is expected, not {value!r}")
        return _Table(self.file, name, value, allowed)


def _settings(top: _Table) -> FileSettings:
    profile = top.text("profile")
    if profile is not None and profile not in PROFILES:
        top.fail("profile", f"one of {', '.join(PROFILES)} is expected, not {profile!r}")
    callers = top.table("callers", FILE_KEYS["callers"])
    variants = top.table("variants", FILE_KEYS["variants"])
    told = TargetSettings(
        url=top.text("url"),
        request=_request(top.table("request", FILE_KEYS["request"])),
        callers={who: callers.headers(who) or () for who in callers.content},
        variants={
            Variant(kind): _request(variants.table(kind, FILE_KEYS["variants.*"]))
            for kind in variants.content
        },
        effects=_effects(top.table("effects", FILE_KEYS["effects"])),
        quoted_key=top.flag("quoted_key"),
        keep_seconds=top.seconds("keep"),
        slow_seconds=top.seconds("slow"),
        openapi=_openapi(top.table("openapi", FILE_KEYS["openapi"])),
    )
    told.key_header = top.text("key_header") or told.key_header
    limits = _limits(top.table("limits", FILE_KEYS["limits"]))
    return FileSettings(told, profile, top.texts("only"), top.texts("skip"), limits)


def _request(table: _Table) -> RequestSettings:
    given = [key for key in ("body", "json", "body_file") if key in table.content]
    if len(given) > 1:
        table.fail(given[1], f"there is {given[0]} already; one of body, json and body_file")
    body = table.text("body")
    if "json" in table.content:
        try:
            body = json.dumps(table.content["json"], ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            table.fail("json", f"JSON has no such value: {error}")
    named = table.text("body_file")
    if named is not None:
        body = _file_text(table, named)
    return RequestSettings(table.text("method"), table.text("path"), table.headers("headers"), body)


def _file_text(table: _Table, name: str) -> str:
    """The text of a file that stands beside the TOML file."""
    try:
        return (table.file.parent / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        table.fail("body_file", f"{name}: {error}")


def _effects(table: _Table) -> EffectSettings:
    told = EffectSettings(
        url=table.text("url"),
        path=table.text("path") or "",
        match=table.text("match") or "",
        headers=table.headers("headers"),
        command=table.texts("command"),
        sql=table.text("sql"),
        database=table.text("database"),
        ids=table.texts("ids"),
    )
    ways = [key for key in ("url", "command", "sql", "ids") if key in table.content]
    if len(ways) > 1:
        table.fail(ways[1], f"there is {ways[0]} already; one of url, command, sql and ids")
    for way, keys in {"url": ("path", "match", "headers"), "sql": ("database",)}.items():
        for key in keys:
            if key in table.content and way not in ways:
                table.fail(key, f"it belongs to {way}, which is not there")
    return told


def _openapi(table: _Table) -> OpenAPISettings:
    if table.content and not {"document", "operation"} <= table.content.keys():
        table.fail("document", "a document and the operation in it are needed, both of them")
    parameters = table.content.get("path_parameters", {})
    fields = table.content.get("fields", {})
    for key, value in (("path_parameters", parameters), ("fields", fields)):
        if not isinstance(value, dict):
            table.fail(key, f'a table is expected, such as {{ id = "1" }}, not {value!r}')
    texts = {name: str(value) for name, value in parameters.items()}
    return OpenAPISettings(table.text("document"), table.text("operation"), texts, fields)


def _limits(table: _Table) -> dict[str, float]:
    limits: dict[str, float | None] = {
        "requests": table.whole("requests"),
        "concurrency": table.whole("concurrency"),
        "timeout": table.seconds("timeout"),
        "patience": table.seconds("patience"),
        "total_seconds": table.seconds("total"),
    }
    return {name: value for name, value in limits.items() if value is not None}
