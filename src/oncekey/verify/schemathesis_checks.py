"""Checks for schemathesis: the verifier's probes on every operation that takes a key.

Importing this module registers one check per guarantee. A check runs once for an operation, on the
first valid request that succeeded, over connections of its own; all other requests are left alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from oncekey.http.missing_dependency import needs
from oncekey.verify.effect_counters import ResponseIdCounter
from oncekey.verify.first_request import FirstRequestFailed, try_first_request
from oncekey.verify.openapi_requests import key_header_of
from oncekey.verify.probe import Budget, BudgetSpent, Limits, Probe, ProbeRun
from oncekey.verify.probes import PROBES
from oncekey.verify.profile import PROFILE_DEFAULT, Profile
from oncekey.verify.raw_connection import Origin
from oncekey.verify.recorded_exchange import curl_line
from oncekey.verify.remedies import remedy
from oncekey.verify.target import Caller, EffectCounter, RequestTemplate, Target, Variant
from oncekey.verify.verdict import Status, Verdict, Violation, not_observable

with needs("verify-openapi"):
    import schemathesis

CHECK_PREFIX = "idempotency_"
_SENT_ANEW = {"content-length", "host", "connection", "user-agent", "accept-encoding"}


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What the checks cannot read from a request.

    effects          how effects are counted; by default by ids in responses, if they have any
    strict           True fails a check that could not be observed, and says what it needs
    key_header       the header for keys of every POST and PATCH whose document does not name it
    caller_headers   the names of headers that say who calls; reports hide their values
    """

    profile: Profile = PROFILE_DEFAULT
    limits: Limits = field(default_factory=Limits)
    other_caller: Caller | None = None
    bad_caller: Caller | None = None
    effects: EffectCounter | None = None
    strict: bool = False
    key_header: str | None = None
    caller_headers: frozenset[str] = frozenset({"authorization", "cookie", "x-api-key"})


class _State:
    """The settings, and which operations were checked; schemathesis has several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.settings = CheckSettings()
        self.verdicts: dict[tuple[str, str, str], Verdict] = {}


_state = _State()


def configure(**changed: Any) -> None:
    """Set fields of CheckSettings, and forget which operations were checked."""
    with _state.lock:
        _state.settings = replace(_state.settings, **changed)
        _state.verdicts.clear()


def verdicts() -> dict[tuple[str, str, str], Verdict]:
    """Return the verdicts so far, by address of the API, operation and guarantee."""
    with _state.lock:
        return dict(_state.verdicts)


def check_name(probe: Probe) -> str:
    """Return the name of a probe's check: idempotency_concurrent_duplicates."""
    return CHECK_PREFIX + probe.guarantee.slug.replace("-", "_")


def _register(probe: Probe) -> Callable[[Any, Any, Any], bool | None]:
    def check(ctx: Any, response: Any, case: Any) -> bool | None:
        header = key_header_of(case.operation)
        if header is None and case.method.upper() in ("POST", "PATCH"):
            header = _state.settings.key_header
        if header is None or not 200 <= response.status_code < 300:
            return True  # not about keys; True tells schemathesis that the check does not apply
        if _breaks_the_schema(case):
            return True  # accepted by chance; what is made from it may be refused
        if probe.guarantee in _state.settings.profile.leaves_out:
            return True
        target = _target(response, header)
        place = (str(target.origin), case.operation.label, probe.guarantee.slug)
        with _state.lock:
            known = _state.verdicts.get(place)
            verdict = known or _run(probe, target)
            _state.verdicts[place] = verdict
        if verdict.status is Status.VIOLATED:
            # Also for every later request of this operation: Hypothesis repeats a failing one, and
            # calls the operation flaky if it does not fail again.
            raise AssertionError(_message(verdict, str(target.origin)))
        if verdict.status is Status.NOT_OBSERVABLE and _state.settings.strict:
            raise AssertionError(
                f"{verdict.guarantee.title}: not observable, because {verdict.summary}. "
                f"{verdict.advice}"
            )
        return True if known or verdict.status is Status.NOT_OBSERVABLE else None

    check.__name__ = check_name(probe)
    check.__doc__ = probe.guarantee.title
    schemathesis.check(check)
    return check


def _breaks_the_schema(case: Any) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_negative


def _target(response: Any, header: str) -> Target:
    """Return the target that the sent request was for."""
    sent = response.request
    parts = urlsplit(sent.url)
    if parts.scheme not in ("http", "https") or parts.hostname in (None, "localhost.invalid"):
        raise AssertionError("these checks need a server: use schemathesis.openapi.from_url")
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    body = sent.body or b""
    text = body if isinstance(body, str) else body.decode("utf-8")
    settings = _state.settings
    callers: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for name, value in sent.headers.items():
        shown = value if isinstance(value, str) else value.decode("latin-1")
        lower = name.lower()
        if lower in _SENT_ANEW or lower == header.lower() or lower.startswith("x-schemathesis"):
            continue
        (callers if lower in settings.caller_headers else others).append((name, shown))
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return Target(
        Origin(parts.scheme, str(parts.hostname), port),
        {Variant.MAIN: RequestTemplate(sent.method, path or "/", tuple(others), text)},
        caller=Caller("caller", tuple(callers)),
        other_caller=settings.other_caller,
        bad_caller=settings.bad_caller,
        key_header=header,
        effects=settings.effects or ResponseIdCounter(),
    )


def _run(probe: Probe, target: Target) -> Verdict:
    # In a thread of its own, because the caller's may have an event loop that is running.
    with ThreadPoolExecutor(1, thread_name_prefix=check_name(probe)) as thread:
        return thread.submit(asyncio.run, _verdict_of(probe, target)).result()


async def _verdict_of(probe: Probe, target: Target) -> Verdict:
    settings = _state.settings
    limits = settings.limits
    budget = Budget(limits.requests, time.monotonic() + limits.total_seconds)
    try:
        first = await try_first_request(target, settings.profile, limits, budget)
        return await probe.run(ProbeRun(first.target, settings.profile, limits, budget))
    except FirstRequestFailed as failed:
        advice = "Give a counter that sees each effect: configure(effects=...)."
        return not_observable(probe.guarantee, str(failed), advice)
    except BudgetSpent as spent:
        return not_observable(probe.guarantee, f"not finished: {spent}", "Raise the limits.")


def _message(verdict: Verdict, origin: str) -> str:
    parts = [f"{verdict.guarantee.title}: violated"]
    parts += [_violation_text(violation, origin) for violation in verdict.violations]
    return "\n\n".join(parts)


def _violation_text(violation: Violation, origin: str) -> str:
    lines = [f"{violation.fault.title} ({violation.fault.slug}): {violation.what}"]
    lines.append(f"Likely cause: {violation.fault.cause}.")
    lines.append(f"How to mend it: {remedy(violation.fault)}")
    for exchange in violation.exchanges:
        lines.append(f"  {curl_line(exchange.request, origin)}")
        lines.append(f"    -> {exchange.outcome()}")
    return "\n".join(lines)


CHECKS = tuple(_register(probe) for probe in PROBES)
