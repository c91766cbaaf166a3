"""The probe that compares a replay with the first response: status, bytes, headers, cookies."""

from __future__ import annotations

from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import (
    BESIDE_THE_POINT,
    HOW_TO_SEE_RUNS,
    SEQUENCE,
    answer,
    confirmed,
    effects_of,
    failed_server,
    is_busy,
    is_marked,
    is_server_failure,
    later_answer,
    members_of_message,
    same_body,
    same_content,
)
from oncekey.verify.probes.outcome_evidence import shown_exchanges
from oncekey.verify.recorded_exchange import Exchange, WireResponse
from oncekey.verify.target import Operation
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    holds,
    not_observable,
    violated,
)

FIDELITY_RETRIES = 3
# After these, so many are sent together, so that what is wrong in one replay of ten is seen too.
FIDELITY_RETRIES_TOGETHER = 20
# Headers that describe the body or the resource. Others belong to the message that carries them.
REPLAYED_HEADERS = (
    "content-type",
    "content-language",
    "content-location",
    "location",
    "etag",
    "last-modified",
    "link",
)


class ReplayFidelity:
    """Retries a finished operation, and compares."""

    guarantee: ClassVar = Guarantee.REPLAY_FIDELITY
    sends: ClassVar = (
        f"a request, {FIDELITY_RETRIES} retries, {FIDELITY_RETRIES_TOGETHER} retries together, "
        "and another request if cookies come back, or if nothing counts effects"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        """Every retry must get the first response again."""
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        operation = await run.operation()
        first = await answer(run, operation.request(), "first request")
        if not first.is_success:
            return not_observable(
                self.guarantee,
                f"the main request did not succeed: {first.outcome()}",
                "Give a main request that succeeds; a dry run shows what is sent.",
            )
        later = first
        for number in range(1, FIDELITY_RETRIES + 1):
            note = f"retry {number} of {FIDELITY_RETRIES}"
            retry = await later_answer(run, operation, first, operation.request(), note)
            later = retry.exchange
            if is_busy(later) or later.status in BESIDE_THE_POINT | run.profile.in_flight:
                return not_observable(
                    self.guarantee,
                    f"a retry of a request that succeeded is answered with {later.outcome()}",
                    "See the guarantee lost-response, which waits for longer.",
                )
            if retry.ran_again:
                what = f"retry {number} was run again: {retry.ran_again}"
                found = [Violation(Fault.KEY_IGNORED, what, (first, later))]
            else:
                found = await _differences(run, first, later)
            if found:
                return violated(self.guarantee, found, n=number, window=SEQUENCE)
        seen, found = await _together(run, operation, first)
        n, window = FIDELITY_RETRIES + seen, f"{SEQUENCE}, and {seen} together"
        if found:
            return violated(self.guarantee, found, n=n, window=window)
        if await _is_always_the_same(run, first, later):
            return not_observable(
                self.guarantee,
                "every operation gets the same response, so a replay looks like a second run",
                HOW_TO_SEE_RUNS,
            )
        return holds(
            self.guarantee,
            f"{n} retries got the first response again: {first.outcome()} and "
            f"{len(_response(first).body)} bytes",
            n=n,
            window=window,
            unseen=_unseen(run, first, later),
        )


async def _together(
    run: ProbeRun, operation: Operation, first: Exchange
) -> tuple[int, list[Violation]]:
    """Send retries that are complete at once; return how many succeeded, and what is wrong.

    Those that failed say nothing: the server may have had no time for so many.
    """
    before = await effects_of(run, operation)
    count = min(FIDELITY_RETRIES_TOGETHER, run.limits.concurrency)
    sent = await run.send_together([operation.request()] * count, "retry together")
    after = await effects_of(run, operation)
    told = [exchange for exchange in sent.exchanges if exchange.is_success]
    if before is not None and after is not None and after > before > 0:
        what = f"{count} retries together were run again: {after} effects, and {before} before"
        shown = shown_exchanges((first, *told))
        return len(told), [Violation(Fault.KEY_IGNORED, what, shown)]
    for exchange in told:
        found = _content_differences(run, first, exchange)
        if found:
            return len(told), found
    return len(told), []


async def _is_always_the_same(run: ProbeRun, first: Exchange, later: Exchange) -> bool:
    """True if nothing tells replays from runs: no counter, no mark, and no other response."""
    if run.target.effects is not None or is_marked(run, later):
        return False
    other = await answer(run, (await run.operation()).request(), "another operation")
    return same_content(first, other)


async def _differences(run: ProbeRun, first: Exchange, later: Exchange) -> list[Violation]:
    """Return what a retry's response has lost or gained."""
    if is_server_failure(later):
        return [failed_server(later, (first,))]
    if later.status != first.status and not later.is_success and not same_body(first, later):
        what = f"the first response was {first.outcome()}, a retry gets {later.outcome()}"
        return [Violation(Fault.NEVER_ANSWERED, what, (first, later))]
    found = _content_differences(run, first, later)
    cookies = [] if run.profile.cookies else await _replayed_cookies(run, first, later)
    if cookies:
        what = f"a retry got the cookies of the first response: {', '.join(cookies)}"
        found.append(Violation(Fault.COOKIES_REPLAYED, what, (first, later)))
    return found


def _content_differences(run: ProbeRun, first: Exchange, later: Exchange) -> list[Violation]:
    """Compare status, body, headers and mark."""
    found: list[tuple[Fault, str]] = []
    if later.status != first.status:
        what = f"the first response was {first.outcome()}, a retry gets {later.outcome()}"
        found.append((Fault.STATUS_LOST, what))
    is_same = same_body if run.profile.exact_body else same_content
    if not is_same(first, later) and not _is_encoded(first, later):
        sizes = f"{len(_response(first).body)} and {len(_response(later).body)} bytes"
        found.append((Fault.BODY_CHANGED, f"the body of a retry's response differs: {sizes}"))
    if run.profile.replays_headers:
        lost = _lost_headers(_response(first), _response(later))
        if lost:
            found.append((Fault.HEADERS_LOST, f"a retry's response differs in {', '.join(lost)}"))
    if run.profile.replay_header is not None:
        name, value = run.profile.replay_header
        if _response(later).header(name) != value:
            found.append((Fault.REPLAY_UNMARKED, f"a retry's response has no {name}: {value}"))
        elif _response(first).header(name) == value:
            found.append((Fault.REPLAY_UNMARKED, f"the first response has {name}: {value} too"))
    return [Violation(fault, what, (first, later)) for fault, what in found]


def _lost_headers(first: WireResponse, later: WireResponse) -> list[str]:
    """Return the names of headers that are not as they were."""
    return [
        name
        for name in REPLAYED_HEADERS
        if first.header_lines(name) and _plain(first, name) != _plain(later, name)
    ]


def _plain(response: WireResponse, name: str) -> list[str]:
    """Return a header's lines in a form in which what means the same is the same."""
    lines = ["".join(line.split()) for line in response.header_lines(name)]
    return [line.lower() for line in lines] if name == "content-type" else lines


async def _replayed_cookies(run: ProbeRun, first: Exchange, later: Exchange) -> list[str]:
    """Return the names of cookies that come again with the value of the first response.

    A cookie that every response has, such as one with a language, is not replayed but sent anew;
    so another operation is made to see which ones that are.
    """
    again = _cookies(first) & _cookies(later)
    if not again:
        return []
    other = await answer(run, (await run.operation()).request(), "another operation")
    return sorted(cookie.partition("=")[0] for cookie in again - _cookies(other))


def _cookies(exchange: Exchange) -> set[str]:
    """Return name=value of each cookie; its attributes may have dates."""
    if exchange.response is None:
        return set()
    lines = exchange.response.header_lines("set-cookie")
    return {line.partition(";")[0].strip() for line in lines}


def _is_encoded(*exchanges: Exchange) -> bool:
    """True if a body is compressed: the same content may be other bytes then."""
    return any(_response(exchange).header("content-encoding") for exchange in exchanges)


def _unseen(run: ProbeRun, first: Exchange, later: Exchange) -> tuple[str, ...]:
    response = _response(first)
    unseen = []
    members = members_of_message(first, later)
    if members:
        unseen.append(f"bytes: a replay differs in {', '.join(members)}, and in nothing else")
    if not _cookies(first) and not run.profile.cookies:
        unseen.append("cookies: the first response has none")
    if not any(response.header(name) for name in REPLAYED_HEADERS[1:]):
        unseen.append("headers other than Content-Type: the first response has none")
    if _is_encoded(first):
        unseen.append("bytes: the body is compressed")
    return tuple(unseen)


def _response(exchange: Exchange) -> WireResponse:
    assert exchange.response is not None
    return exchange.response


PROBES = (ReplayFidelity(),)
