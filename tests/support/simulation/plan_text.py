"""A plan as plain sentences, for people who read a story."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.simulation.plan import (
    KEYS,
    OF_AN_OPERATOR,
    OF_THE_STORE,
    SECOND,
    Call,
    Fault,
    Plan,
    Settings,
)

from oncekey.core.record import FOREVER_US


def describe_plan(plan: Plan) -> Iterator[str]:
    """The lines of a plan."""
    first, second = plan.settings
    yield f"The settings are {_settings(first)}."
    if second != first:
        yield f"New settings, also those of the last claim: {_settings(second)}."
    yield (
        f"Messages take 1 to {1 + plan.spread / 1000:.1f} ms, and a process waits "
        f"{_time(plan.patience)} for a reply."
    )
    for call in plan.calls:
        yield _call(call)
    for fault in plan.faults:
        yield f"At {_time(fault.at)} {_fault(fault)}."


def _settings(settings: Settings) -> str:
    times = settings.times
    parts = [
        "retry-safe" if times.retry_safe else "not retry-safe",
        f"lease {_time(times.lease)}",
        f"keep {_time(times.keep)}",
        f"audit {_time(times.audit)}",
        f"store_timeout {_time(times.store_timeout)}",
    ]
    if times.wait:
        parts.append(f"wait {_time(times.wait)}")
    if times.keep_unknown < FOREVER_US:
        parts.append(f"keep_unknown {_time(times.keep_unknown)}")
    if settings.recoverable:
        parts.append(f"a recover function, recover_grace {_time(times.recover_grace)}")
    if settings.registered:
        parts.append("stored arguments")
    return ", ".join(parts)


def _call(call: Call) -> str:
    body = call.body
    does = [f"waits {_time(body.before)}"]
    if body.steps:
        does.append(f"takes {body.steps} steps")
    if body.acts:
        does.append("checks its claim and acts" if body.careful else "acts")
    does.append(f"waits {_time(body.after)} and {body.ending.value}")
    tries = ", ".join(f"process {one.process + 1}" for one in call.tries)
    other = " with another request" if call.request else ""
    return (
        f"At {_time(call.at)} caller {call.number} uses {KEYS[call.key]}{other} at {tries}; "
        f"the body {', '.join(does)}."
    )


def _fault(fault: Fault) -> str:
    kind = fault.kind
    if kind in OF_THE_STORE:
        return f"{kind.value} ({_time(fault.lasts)}, {fault.amount})"
    if kind in OF_AN_OPERATOR:
        return f"{kind.value}: {KEYS[fault.key]}"
    return f"process {fault.process + 1} {kind.value} ({_time(fault.lasts)})"


def _time(us: int) -> str:
    return f"{us / SECOND:g} s" if us >= SECOND else f"{us / 1000:g} ms"
