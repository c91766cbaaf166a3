"""The plan of `oncekey verify`: what is to be verified, by the command's options and by a file.

Options win over the file. `plan_of` is where both become a target; a target from elsewhere, such as
an OpenAPI document, takes the place of what `TargetSettings.target` returns.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from oncekey.cli.command_input import read_bytes
from oncekey.cli.output import UsageProblem
from oncekey.core.errors import ConfigurationError
from oncekey.verify.profile import PROFILE_DEFAULT, PROFILES, Profile
from oncekey.verify.verdict import Guarantee

if TYPE_CHECKING:
    from oncekey.verify.openapi_requests import GeneratedRequests
    from oncekey.verify.probe import Limits, Probe
    from oncekey.verify.target import Target, Variant
    from oncekey.verify.target_file import FileSettings
    from oncekey.verify.target_settings import HeaderTexts, RequestSettings, TargetSettings

REQUESTS_RANGE = click.IntRange(1, 100_000)
CONCURRENCY_RANGE = click.IntRange(2, 500)
SECONDS_RANGE = click.FloatRange(0.1, 86_400)
KEEP_RANGE_US = (100_000, 600_000_000)
SLOW_RANGE_US = (100_000, 600_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """The options as they were given; None or an empty tuple where they were not."""

    url: str | None = None
    method: str | None = None
    headers: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    config: Path | None = None
    caller: tuple[str, ...] = ()
    other_caller: tuple[str, ...] = ()
    bad_caller: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    openapi: str | None = None
    operation: str | None = None
    path_parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    key_header: str | None = None
    quoted_key: bool = False
    slow: int | None = None
    keep: int | None = None
    count_url: str | None = None
    count_path: str | None = None
    count_match: str | None = None
    count_header: tuple[str, ...] = ()
    count_command: str | None = None
    count_sql: str | None = None
    count_database: str | None = None
    count_id: tuple[str, ...] = ()
    profile: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    max_requests: int | None = None
    max_seconds: float | None = None
    concurrency: int | None = None
    timeout: float | None = None
    patience: float | None = None
    yes: bool = False
    dry_run: bool = False
    strict: bool = False
    junit: Path | None = None
    html: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """What is to be verified, and how.

    settings    what the target was made of
    generated   requests from an OpenAPI document: the target has the first of them, and which one
                the API accepts is found by trying
    """

    settings: TargetSettings
    generated: GeneratedRequests | None
    target: Target
    profile: Profile
    limits: Limits
    probes: tuple[Probe, ...]


def plan_of(options: VerifyOptions, probes: Sequence[Probe]) -> VerifyPlan:
    """Return the plan. Raises UsageProblem or ConfigurationError."""
    from oncekey.verify.target_file import FileSettings, read_target_file

    settings = FileSettings() if options.config is None else read_target_file(options.config)
    _overlay(settings.target, options)
    generated = _generated(settings.target)
    if generated is not None and settings.target.key_header is None:
        settings.target.key_header = generated.key_header
    _check_durations(settings.target)
    target = settings.target.target(generated=None if generated is None else generated.first)
    profile = PROFILES[options.profile or settings.profile or PROFILE_DEFAULT.name]
    chosen = _chosen(probes, options.only or settings.only, options.skip or settings.skip, profile)
    limits = _limits(options, settings)
    return VerifyPlan(settings.target, generated, target, profile, limits, chosen)


def _overlay(settings: TargetSettings, options: VerifyOptions) -> None:
    """Writes the options over the settings of a file."""
    settings.url = options.url or settings.url
    settings.request.method = options.method or settings.request.method
    if options.headers:
        settings.request.headers = _lines("--header", options.headers)
    if options.data:
        settings.request.body = "&".join(_text("--data", text) for text in options.data)
    given = {"main": options.caller, "other": options.other_caller, "bad": options.bad_caller}
    for who, lines in given.items():
        if lines:
            settings.callers[who] = _lines(
                "--caller" if who == "main" else f"--{who}-caller", lines
            )
    for text in options.variants:
        kind, request = _variant(text)
        settings.variants[kind] = request
    _overlay_openapi(settings, options)
    settings.key_header = options.key_header or settings.key_header
    settings.quoted_key = options.quoted_key or settings.quoted_key
    if options.slow is not None:
        settings.slow_seconds = options.slow / 1_000_000
    if options.keep is not None:
        settings.keep_seconds = options.keep / 1_000_000
    _overlay_effects(settings, options)


def _overlay_openapi(settings: TargetSettings, options: VerifyOptions) -> None:
    settings.openapi.document = options.openapi or settings.openapi.document
    settings.openapi.operation = options.operation or settings.openapi.operation
    for text in options.path_parameters:
        name, value = _named("--path-parameter", text)
        settings.openapi.path_parameters[name] = value
    for text in options.fields:
        name, value = _named("--field", text)
        try:
            settings.openapi.fields[name] = json.loads(value)
        except ValueError:
            settings.openapi.fields[name] = value
    if settings.openapi.document is None and (
        settings.openapi.operation or options.path_parameters or options.fields
    ):
        raise UsageProblem("--operation, --path-parameter and --field need --openapi")


def _named(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageProblem(f"{option} {text}: expected is NAME=VALUE")
    return name, value


def _generated(settings: TargetSettings) -> GeneratedRequests | None:
    """Return the requests of an OpenAPI document, if there is one."""
    if settings.openapi.document is None:
        return None
    from oncekey.verify.openapi_requests import GeneratedRequests
    from oncekey.verify.target_settings import split_url

    if settings.request.body is not None:
        raise UsageProblem("a body and --openapi: give one of them")
    split_url(settings.url or "")
    return GeneratedRequests(settings.openapi, urlsplit(settings.url or "").path)


def _overlay_effects(settings: TargetSettings, options: VerifyOptions) -> None:
    from oncekey.verify.target_settings import EffectSettings

    ways = (options.count_url, options.count_command, options.count_sql, options.count_id)
    parts = (options.count_path, options.count_match, options.count_header, options.count_database)
    if any(ways):
        settings.effects = EffectSettings(
            url=options.count_url,
            command=_words("--count-command", options.count_command or ""),
            sql=options.count_sql,
            ids=options.count_id,
        )
    elif any(parts) and settings.effects == EffectSettings():
        raise UsageProblem(
            "--count-path, --count-match, --count-header and --count-database need "
            "--count-url or --count-sql"
        )
    effects = settings.effects
    effects.path = options.count_path or effects.path
    effects.match = options.count_match or effects.match
    effects.database = options.count_database or effects.database
    if options.count_header:
        effects.headers = _lines("--count-header", options.count_header)


def _words(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageProblem(f"{option}: {error}") from error


def _lines(option: str, texts: Sequence[str]) -> HeaderTexts:
    """Header lines as curl takes them: `Name: value`, or `Name;` for one without a value."""
    lines = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon and text.endswith(";"):
            name, value = text[:-1], ""
        elif not colon or not name.strip():
            # The text is not repeated: it may be a token.
            raise UsageProblem(f"{option}: a header is written as 'Name: value'")
        lines.append((name.strip(), value.strip()))
    return tuple(lines)


def _text(option: str, text: str) -> str:
    try:
        return read_bytes(option, text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{option}: not UTF-8") from error


def _variant(text: str) -> tuple[Variant, RequestSettings]:
    """A variant as an option has it: its name, and a body, a path, or a path and a body."""
    from oncekey.verify.target import Variant
    from oncekey.verify.target_settings import RequestSettings

    name, _, value = text.partition("=")
    kinds = [kind for kind in Variant if kind is not Variant.MAIN]
    if name not in kinds or not value:
        raise UsageProblem(f"--variant {name}: expected is NAME=BODY with {', '.join(kinds)}")
    if value.startswith("/"):
        path, _, body = value.partition(" ")
        return Variant(name), RequestSettings(path=path, body=body.strip() or None)
    return Variant(name), RequestSettings(body=_text(f"--variant {name}", value))


def _chosen(
    probes: Sequence[Probe], only: Sequence[str], skip: Sequence[str], profile: Profile
) -> tuple[Probe, ...]:
    known = {guarantee.slug for guarantee in Guarantee}
    for slug in (*only, *skip):
        if slug not in known:  # of a file; options are checked by their type
            raise ConfigurationError(f"only, skip: {slug!r} is none of {', '.join(sorted(known))}")
    chosen = tuple(
        probe
        for probe in probes
        if (not only or probe.guarantee.slug in only)
        and probe.guarantee.slug not in skip
        and probe.guarantee not in profile.leaves_out
    )
    if not chosen:
        raise UsageProblem("nothing is left to verify: look at --only, --skip and --profile")
    return chosen


def _check_durations(settings: TargetSettings) -> None:
    """Raises ConfigurationError for durations of a file that the options would not take."""
    ranges = {
        "keep": (settings.keep_seconds, KEEP_RANGE_US),
        "slow": (settings.slow_seconds, SLOW_RANGE_US),
    }
    for name, (seconds, (least, most)) in ranges.items():
        if seconds is not None and not least <= 1_000_000 * seconds <= most:
            raise ConfigurationError(
                f"{name}: {seconds:g} s is not from {least / 1_000_000:g} to {most / 1_000_000:g} s"
            )


def _limits(options: VerifyOptions, settings: FileSettings) -> Limits:
    from oncekey.verify.probe import Limits

    ranges = {"requests": REQUESTS_RANGE, "concurrency": CONCURRENCY_RANGE}
    for name, value in settings.limits.items():
        allowed = ranges.get(name, SECONDS_RANGE)
        if not (allowed.min or 0) <= value <= (allowed.max or value):
            raise ConfigurationError(
                f"[limits] {name.removesuffix('_seconds')}: {value:g} is not from {allowed.min:g} "
                f"to {allowed.max:g}"
            )
    usual = Limits()

    def chosen(option: float | None, name: str) -> float:
        return settings.limits.get(name, getattr(usual, name)) if option is None else option

    return Limits(
        requests=int(chosen(options.max_requests, "requests")),
        concurrency=int(chosen(options.concurrency, "concurrency")),
        timeout=chosen(options.timeout, "timeout"),
        patience=chosen(options.patience, "patience"),
        total_seconds=chosen(options.max_seconds, "total_seconds"),
    )
