"""An operation whose outcome is known, and how the answer to another request relates to it.

Most probes begin here: a request succeeds, and its retry is answered without a second run. What
goes wrong afterwards is then not simply a key that is ignored. Everything here gives the API the
benefit of the doubt: who is busy is asked again, and a fault counts only if it is seen twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oncekey.verify import json_path
from oncekey.verify.probe import ProbeRun
from oncekey.verify.recorded_exchange import Exchange, WireRequest
from oncekey.verify.target import CountFailed, Operation, Variant
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Status,
    Verdict,
    Violation,
    not_observable,
    violated,
)

# A server that is busy, or says that a request is in flight, is asked again for so long.
SETTLE_SECONDS = 5.0
SETTLE_PAUSE_SECONDS = 0.2
# A total that changes within this time, while nothing is sent, is changed by others.
QUIET_SECONDS = 0.5
# Answers that say nothing about keys: who calls, or how much, is not in order.
BESIDE_THE_POINT = frozenset({401, 403, 407, 408, 421, 425, 429})

# A member of JSON with one of these in its name is about the message that carries it.
_WORDS_OF_MESSAGE = frozenset(
    {"request", "trace", "correlation", "replay", "idempoten", "cached", "duplicate"}
)

SEQUENCE = "one request after the other"

HOW_TO_SEE_RUNS = (
    "Say how effects are counted (--count-url, --count-command, --count-sql, or [effects]), or "
    "verify a request whose response has an id that is new for each run."
)
HOW_TO_BE_ANSWERED = "Make sure that the API takes some requests per second from this caller."


@dataclass(frozen=True, slots=True)
class KnownOutcome:
    """An operation that succeeded, and whose retry was answered without a second run."""

    operation: Operation
    first: Exchange
    retry: Exchange

    @property
    def request(self) -> WireRequest:
        return self.first.request

    @property
    def shown(self) -> tuple[Exchange, Exchange]:
        """What a violation shows of it."""
        return self.first, self.retry


async def known_outcome(
    run: ProbeRun, guarantee: Guarantee, variant: Variant = Variant.MAIN
) -> KnownOutcome | Verdict:
    """Make an operation with a known outcome; or return the verdict if that does not work."""
    operation = await run.operation(variant)
    first = await answer(run, operation.request(), "first request")
    if not first.is_success:
        return not_observable(
            guarantee,
            f"the {variant} request did not succeed: {first.outcome()}",
            f"Give a {variant} request that succeeds; a dry run shows what is sent.",
        )
    retry = await later_answer(run, operation, first, operation.request(), "retry")
    if retry.ran_again:
        what = f"a retry that was sent after the first response was run again: {retry.ran_again}"
        violation = Violation(Fault.KEY_IGNORED, what, (first, retry.exchange))
        return violated(guarantee, [violation], n=1, window=SEQUENCE)
    if not retry.exchange.is_success:
        return not_observable(
            guarantee,
            f"the first request succeeded, and its retry gets {retry.exchange.outcome()}",
            "See the guarantees lost-response and replay-fidelity.",
        )
    return KnownOutcome(operation, first, retry.exchange)


@dataclass(frozen=True, slots=True)
class LaterAnswer:
    """The answer to a request that was sent after an operation had ended.

    ran_again   what shows for certain that it was run, if so; else ""
    """

    exchange: Exchange
    ran_again: str


async def later_answer(
    run: ProbeRun, operation: Operation, first: Exchange, request: WireRequest, note: str
) -> LaterAnswer:
    """Send a request that may be a retry of an operation, and see whether it was run."""
    before = await effects_of(run, operation)
    exchange = await answer(run, request, note)
    after = await effects_of(run, operation)
    shows = ""
    # A count that has not even seen the first run yet says nothing about a second one.
    if before is not None and after is not None and before > 0:
        if after > before:
            shows = f"{after} effects, and {before} before it"
    elif not is_marked(run, exchange) and other_ids(first, exchange):
        shows = "its response tells of another thing that was made"
    return LaterAnswer(exchange, shows)


async def answer(run: ProbeRun, request: WireRequest, note: str) -> Exchange:
    """Send a request until its answer says something, for SETTLE_SECONDS at most.

    A server that is busy, restarts, or says that the key is in flight, is asked again; any other
    failure of the server is too, but once.
    """
    ends_at = time.monotonic() + min(SETTLE_SECONDS, run.limits.patience)
    exchange = await run.send(request, note)
    failures = 0
    while time.monotonic() < ends_at:
        status = exchange.status
        if status is not None and 500 <= status != 503:
            failures += 1
        elif not is_busy(exchange) and status not in run.profile.in_flight:
            break
        if failures > 1:
            break
        await asyncio.sleep(SETTLE_PAUSE_SECONDS)
        exchange = await run.send(request, note)
    return exchange


def is_busy(exchange: Exchange) -> bool:
    """True if the server had no time for the request, or could not be reached."""
    return exchange.status in (None, 429, 503)


def is_server_failure(exchange: Exchange) -> bool:
    """True if the server failed, and was not only busy."""
    return exchange.status is not None and exchange.status >= 500 and not is_busy(exchange)


def is_refusal(exchange: Exchange) -> bool:
    """True if the request itself was refused."""
    status = exchange.status
    return status is not None and 400 <= status < 500 and status not in BESIDE_THE_POINT


def is_marked(run: ProbeRun, exchange: Exchange) -> bool:
    """True if a header says that this is a replay: the profile's, or one that is named like it."""
    if exchange.response is None:
        return False
    wanted = run.profile.replay_header
    for name, value in exchange.response.headers:
        lower = name.lower()
        is_named_so = "idempoten" in lower and "replay" in lower
        if is_named_so or (wanted is not None and lower == wanted[0].lower()):
            return value.decode("latin-1").strip().lower() in ("true", "1", "yes", "?1")
    return False


def same_body(one: Exchange, other: Exchange) -> bool:
    """True if both have a response, with the same bytes."""
    if one.response is None or other.response is None:
        return False
    return one.response.body == other.response.body


def same_content(one: Exchange, other: Exchange) -> bool:
    """True if both have the same bytes, or the same JSON but for members that tell about the
    message: whether it is a replay, and which request it answers."""
    return same_body(one, other) or bool(members_of_message(one, other))


def members_of_message(one: Exchange, other: Exchange) -> list[str]:
    """Return the names of members about the message in which two JSON bodies differ; none if the
    bodies differ in anything else, or in nothing."""
    if one.response is None or other.response is None:
        return []
    try:
        first = json_path.document(one.response.body)
        second = json_path.document(other.response.body)
    except ValueError:
        return []
    if not isinstance(first, dict) or not isinstance(second, dict):
        return []
    names = {name for name in first | second if first.get(name) != second.get(name)}
    return sorted(names) if all(map(_is_of_message, names)) else []


def other_ids(one: Exchange, other: Exchange) -> bool:
    """True if the responses tell of two things: an id, or a Location, that is not the same."""
    if not one.is_success or not other.is_success:
        return False
    first, second = dict(_ids(one)), dict(_ids(other))
    return any(second.get(place, value) != value for place, value in first.items())


def same_ids(one: Exchange, other: Exchange) -> bool:
    """True if both responses tell of the same thing."""
    if not one.is_success or not other.is_success:
        return False
    ids = dict(_ids(one))
    return bool(ids) and ids == dict(_ids(other))


async def effects_of(run: ProbeRun, operation: Operation) -> int | None:
    """Return how often the operation had its effect; None if that cannot be told."""
    try:
        effects = await run.effects(operation)
        if effects is None or run.target.effects is None or not run.target.effects.is_total:
            return effects
        await asyncio.sleep(QUIET_SECONDS)
        return effects if await run.effects(operation) == effects else None
    except CountFailed:
        return None  # most of what is probed here can be seen from responses


async def had_effect(run: ProbeRun, operation: Operation) -> bool:
    """True if it is certain that an operation had its effect."""
    try:
        effects = await run.effects(operation)
    except CountFailed:
        return False
    if not effects or effects < 0:
        return False
    return bool(await effects_of(run, operation))


async def lost_outcome(run: ProbeRun, known: KnownOutcome, note: str) -> Exchange | None:
    """Send the first request again; return the exchange if it is not answered with its outcome.

    An answer beside the point, such as 401 because a token has ended meanwhile, is none.
    """
    later = await later_answer(run, known.operation, known.first, known.request, note)
    exchange = later.exchange
    if is_busy(exchange) or exchange.status in BESIDE_THE_POINT:
        return None
    return None if exchange.is_success and not later.ran_again else exchange


async def confirmed(trial: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """Return the verdict of a trial; faults count only if a second trial shows them too.

    Whatever is sent here one after the other gives the same result each time, unless the server
    was restarted or its record expired in between.
    """
    seen = await trial()
    if seen.status is not Status.VIOLATED:
        return seen
    again = await trial()
    faults = {violation.fault for violation in again.violations}
    certain = [violation for violation in seen.violations if violation.fault in faults]
    if certain:
        return violated(seen.guarantee, certain, n=seen.n + again.n, window=seen.window)
    return not_observable(
        seen.guarantee,
        f"it was seen in one of two trials only: {seen.summary}",
        "Make sure that the server is not restarted meanwhile, and run it again.",
    )


def failed_server(exchange: Exchange, shown: Sequence[Exchange]) -> Violation:
    """The violation of a server that fails where it should answer or refuse."""
    what = f"{exchange.note}: the server failed with {exchange.outcome()}"
    return Violation(Fault.SERVER_FAILED, what, (*shown, exchange))


def _ids(exchange: Exchange) -> Iterator[tuple[str, str]]:
    """Yield where a response has an id, and the id."""
    assert exchange.response is not None
    location = exchange.response.header("location")
    if location is not None:
        yield "location", location
    try:
        document = json_path.document(exchange.response.body)
    except ValueError:
        return
    yield from _ids_in(document, "")
    if isinstance(document, dict) and isinstance(document.get("data"), dict):
        yield from _ids_in(document["data"], "data.")


def _ids_in(document: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(document, dict):
        return
    for name, value in document.items():
        is_id = name.lower() in ("id", "uuid") or name.endswith(("_id", "Id"))
        if is_id and not _is_of_message(name) and isinstance(value, str | int):
            yield path + name, str(value)


def _is_of_message(name: str) -> bool:
    """True for a member about the message and not about what was made: it may be new each time,
    also for a replay."""
    return any(word in name.lower() for word in _WORDS_OF_MESSAGE)
