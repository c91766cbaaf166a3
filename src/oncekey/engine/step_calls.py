"""One call of `attempt.step`, worked out: what is sent, what is already known of it.

Owns how requests and results of steps become bytes and come back. Both colours use it; the rules
of a step are in core/step_flow.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from oncekey.core import codec as codecs
from oncekey.core.codec import JSON, Codec, StoredError, StoredValue, Tombstone, unpack
from oncekey.core.duration import Duration, microseconds
from oncekey.core.effects import Returned, StepOutcome
from oncekey.core.errors import ConfigurationError, NotReplayable
from oncekey.core.policy import Policy
from oncekey.core.record import Step
from oncekey.core.step_flow import StepPlan
from oncekey.core.step_format import (
    StepResult,
    pack_step,
    refuse_reserved,
    result_facts,
    unpack_step,
)
from oncekey.engine.results import value_of


class StepCall(NamedTuple):
    """`args` is what the step's function is called with: its child key, and the request as it was
    written down, so that every run of it sends the same."""

    plan: StepPlan
    saved: Step | None
    child: str
    args: tuple[Any, ...]
    codec: Codec


def step_call(
    name: str,
    child: str,
    saved: Step | None,
    *,
    request: Any,
    probed: bool,
    probe_grace: Duration | None,
    codec: Codec,
    policy: Policy,
) -> StepCall:
    refuse_reserved(name)
    if probe_grace is not None and not probed:
        raise ConfigurationError(f"step {name!r}: probe_grace= is for a probe=, and there is none")
    envelope = b"" if request is None else _envelope(name, request, policy)
    if saved is not None and not saved.done:
        # What may have arrived is sent again as it was, whatever the caller would say now.
        written = unpack_step(saved.body).envelope
        if written and not envelope:
            raise ConfigurationError(
                f"step {name!r} was begun with a request= and is called without one now; what may "
                "have arrived must be sent again as it was"
            )
        envelope = written or envelope
    args = (child, JSON.load(_data(name, envelope))) if envelope else (child,)
    us = (
        policy.times.lease if probe_grace is None else microseconds(probe_grace, name="probe_grace")
    )
    intent = pack_step({"key": child}, envelope)
    return StepCall(StepPlan(name, intent, probed, us), saved, child, args, codec)


def _envelope(name: str, request: Any, policy: Policy) -> bytes:
    try:
        envelope = codecs.pack_value(JSON, request)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"step {name!r}: this request cannot be written down before it is sent ({error})"
        ) from error
    if len(envelope) > policy.max_bytes:
        raise ConfigurationError(
            f"step {name!r}: its request has {len(envelope)} bytes, max_bytes is "
            f"{policy.max_bytes}; keep large content elsewhere and send where it is"
        )
    return envelope


def _data(name: str, envelope: bytes) -> bytes:
    stored = unpack(envelope)
    if isinstance(stored, StoredValue) and stored.codec == JSON.name:
        return stored.data
    raise NotReplayable(f"step {name!r}: the request that was sent cannot be read any more")


def packed(answer: object, returned: Returned) -> Returned:
    """A step's result with what the other side calls it."""
    facts = result_facts(answer) if isinstance(answer, StepResult) else {}
    return returned._replace(body=pack_step(facts, returned.body))


def bare(answer: Any) -> Any:
    return answer.value if isinstance(answer, StepResult) else answer


def value_for_body(call: StepCall, outcome: StepOutcome) -> Any:
    """What the step gives its body: on the first run what a later run would get. A large result is
    the body's; one no codec took is a mistake to be found on the first run, not on the first
    re-run."""
    stored = unpack(unpack_step(outcome.body).envelope)
    if not outcome.kept and isinstance(stored, Tombstone) and stored.too_large:
        return outcome.raw
    if isinstance(stored, StoredValue):
        return value_of(stored, call.codec)
    reason = "an error" if isinstance(stored, StoredError) else stored.reason
    name = call.plan.name
    when = "before but its result was not kept" if outcome.kept else "but its result cannot be kept"
    raise NotReplayable(f"step {name!r} ran {when} ({reason})", value=outcome.raw)
