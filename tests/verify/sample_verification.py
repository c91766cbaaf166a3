"""A verification with everything a report can have: faults, what holds, what was not observable."""

from __future__ import annotations

from datetime import UTC, datetime

from oncekey.verify.effect_counters import UrlCounter
from oncekey.verify.profile import IETF
from oncekey.verify.raw_connection import Origin
from oncekey.verify.recorded_exchange import Exchange, Headers, WireRequest, WireResponse
from oncekey.verify.target import Caller, Operation, RequestTemplate, Target, Variant, new_values
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    holds,
    not_observable,
    violated,
)
from oncekey.verify.verification import ProbeRecord, Verification

TOKEN = "tok_9f2b61c0secret"
COOKIE = "8c1f0b2d"
ORIGIN = Origin("http", "127.0.0.1", 8000)
TARGET = Target(
    ORIGIN,
    {
        Variant.MAIN: RequestTemplate(
            "POST",
            "/charges",
            (("Content-Type", "application/json"),),
            '{"order": "{{unique}}", "cents": 500}',
        )
    },
    caller=Caller("caller", (("Authorization", f"Bearer {TOKEN}"),)),
    effects=UrlCounter(ORIGIN, "/ledger", match="{{unique}}"),
)


def operation() -> Operation:
    key = "5a0e7c1e-7d7b-4f8e-9a0e-2d9c6a51f0aa"
    return Operation(TARGET, Variant.MAIN, key, new_values(key))


def exchange(
    request: WireRequest,
    status: int,
    body: str,
    *,
    sent: float,
    answered: float,
    note: str = "",
    headers: Headers = (),
) -> Exchange:
    lines: Headers = (("Content-Type", b"application/json"), *headers)
    response = WireResponse(status, lines, body.encode())
    return Exchange(request, response, "", note, sent, answered)


def duplicates(count: int, winners: int) -> tuple[Exchange, ...]:
    """Equal requests that were released together; each winner has a success of its own."""
    request = operation().request()
    found = []
    for number in range(count):
        wins = number < winners
        found.append(
            exchange(
                request,
                201 if wins else 409,
                f'{{"id":"ch_{number:04d}","cents":500}}' if wins else '{"title":"in flight"}',
                sent=10.0 + number * 0.0002,
                answered=10.155 + number * 0.004 if wins else 10.012 + number * 0.0021,
                note=f"duplicate {number + 1} of {count}",
            )
        )
    return tuple(found)


def replayed_cookie() -> tuple[Exchange, Exchange]:
    request = operation().request()
    body = f'{{"id":"ch_1","seen":"Bearer {TOKEN}"}}'
    cookie: Headers = (("Set-Cookie", f"session={COOKIE}; HttpOnly".encode()),)
    first = exchange(request, 201, body, sent=20.0, answered=20.16, note="first", headers=cookie)
    again = exchange(request, 201, body, sent=20.2, answered=20.21, note="retry", headers=cookie)
    return first, again


def lost() -> tuple[Exchange, ...]:
    left = Exchange(
        operation().request(), None, "the client left before the headers", "dropped", 30.0, 30.16
    )
    again = exchange(left.request, 201, '{"id":"ch_2"}', sent=30.2, answered=30.21, note="retry")
    return left, again


def record(verdict: Verdict, exchanges: tuple[Exchange, ...], seconds: float) -> ProbeRecord:
    return ProbeRecord(verdict, exchanges, seconds)


def holding() -> list[ProbeRecord]:
    return [
        record(
            holds(
                Guarantee.LOST_RESPONSE,
                "each retry after a lost response was answered without a second effect",
                n=12,
                window="dropped before the headers, in the middle, before the last byte",
                unseen=("chunked responses",),
            ),
            lost(),
            1.9,
        ),
        record(
            holds(
                Guarantee.MISSING_KEY,
                "a request without a key was refused with 400",
                n=1,
                window="no key at all",
            ),
            (exchange(operation().request(), 400, "{}", sent=40.0, answered=40.01),),
            0.1,
        ),
    ]


def unobservable() -> list[ProbeRecord]:
    found = [
        (Guarantee.OTHER_CALLER, "there is no second caller", "Give one: --other-caller HEADER"),
        (Guarantee.NO_CONTENT, "no request is answered with 204", "Give one: --variant no-content"),
        (Guarantee.EXPIRY, "it is not known how long keys are kept", "Give it: --keep 10s"),
    ]
    return [record(not_observable(*one), (), 0.0) for one in found]


def broken() -> list[ProbeRecord]:
    race = duplicates(20, 3)
    cookies = replayed_cookie()
    return [
        record(
            violated(
                Guarantee.CONCURRENT_DUPLICATES,
                [Violation(Fault.RACE, "20 duplicates together had 3 effects", race)],
                n=20,
                window="20 of 20 were sent before any answer",
            ),
            race,
            2.4,
        ),
        record(
            violated(
                Guarantee.REPLAY_FIDELITY,
                [Violation(Fault.COOKIES_REPLAYED, "the retry got the cookie session", cookies)],
                n=2,
            ),
            cookies,
            0.3,
        ),
    ]


def verification(*records: ProbeRecord) -> Verification:
    """The records as one verification; without any, one of everything."""
    kept = records or (*broken(), *holding(), *unobservable())
    at = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)
    return Verification(TARGET, IETF, tuple(kept), at, 12.34, 419)
