"""What a probe works with: it makes operations, sends their requests, counts effects.

Every exchange of a probe is kept in order, so that a violation can show exactly what was sent. What
a probe may send is bounded by `Limits`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from oncekey.verify.profile import Profile
from oncekey.verify.raw_connection import ConnectionFailed, DropPoint, RawConnection
from oncekey.verify.recorded_exchange import Exchange, WireRequest, WireResponse
from oncekey.verify.target import Operation, Target, Variant, new_values, other_body
from oncekey.verify.verdict import Guarantee, Verdict

RETRY_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one verification.

    requests          how many requests all probes together may send
    concurrency       the most duplicates that are sent together
    timeout           seconds a response may take
    patience          seconds a probe retries until a running operation has its outcome
    total_seconds     seconds the whole verification may take
    """

    requests: int = 2_000
    concurrency: int = 100
    timeout: float = 30.0
    patience: float = 30.0
    total_seconds: float = 120.0

    def budget(self) -> Budget:
        """Return what may be spent, from now on."""
        return Budget(self.requests, time.monotonic() + self.total_seconds)


class BudgetSpent(Exception):
    """The verification may not send more requests, or has no time left."""


@dataclass(slots=True)
class Budget:
    """What is left of the limits, shared by all probes of a verification."""

    requests_left: int
    ends_at: float

    def spend(self) -> None:
        """Count one request. Raises BudgetSpent."""
        if self.requests_left < 1:
            raise BudgetSpent("the limit of requests is reached (--max-requests)")
        if time.monotonic() >= self.ends_at:
            raise BudgetSpent("the time is over (--max-seconds)")
        self.requests_left -= 1


@dataclass(frozen=True, slots=True)
class Together:
    """Exchanges whose last bytes were released together.

    spread   seconds between the first and the last of these bytes
    """

    exchanges: tuple[Exchange, ...]
    spread: float

    @property
    def met(self) -> int:
        """How many were complete at the server before any of them was answered."""
        first_answer = min(exchange.answered_at for exchange in self.exchanges)
        return sum(exchange.sent_at < first_answer for exchange in self.exchanges)


class ProbeRun:
    """One run of one probe against a target."""

    def __init__(self, target: Target, profile: Profile, limits: Limits, budget: Budget) -> None:
        self.target = target
        self.profile = profile
        self.limits = limits
        self.budget = budget
        self.exchanges: list[Exchange] = []
        self._bodies: dict[bytes, bytes] = {}

    def has(self, *variants: Variant) -> bool:
        """True if the target has a template for each of these."""
        return all(variant in self.target.variants for variant in variants)

    async def operation(self, variant: Variant = Variant.MAIN) -> Operation:
        """Return a new operation: a new key, new values in its request."""
        key = str(uuid.uuid4())
        made = Operation(self.target, variant, key, new_values(key))
        counter = self.target.effects
        if counter is None or not counter.is_total:
            return made
        return replace(made, before=await counter.count(made, ()))

    def other_request(
        self, operation: Operation, values: Mapping[str, str] | None = None
    ) -> WireRequest | None:
        """Return a valid request that asks for something else under the same key.

        It is the template OTHER_BODY where there is one; else the same template with new values
        for its placeholders, or with a number in its JSON body one larger. None if none of these
        gives another body. Who wants to know the new values gives them.
        """
        first = operation.request()
        if self.has(Variant.OTHER_BODY):
            return operation.request(variant=Variant.OTHER_BODY)
        renewed = operation.request(values=values or new_values(operation.key))
        if renewed.body != first.body and renewed.path == first.path:
            return renewed
        changed = other_body(first.body.decode("utf-8"))
        return None if changed is None else replace(first, body=changed.encode("utf-8"))

    async def send(self, request: WireRequest, note: str = "") -> Exchange:
        """Send a request and return what came back; a failure is part of the exchange."""
        (exchange,) = (await self.send_together([request], note)).exchanges
        return exchange

    async def send_together(self, requests: Sequence[WireRequest], note: str = "") -> Together:
        """Send all but the last byte of each on connections of their own, then the last bytes."""
        if len(requests) > self.limits.concurrency:
            raise ValueError(f"at most {self.limits.concurrency} requests are sent together")
        for _ in requests:
            self.budget.spend()
        gate = asyncio.Barrier(len(requests))
        notes = (
            [note]
            if len(requests) == 1
            else [
                f"{note} {number} of {len(requests)}".strip()
                for number in range(1, len(requests) + 1)
            ]
        )
        exchanges = await asyncio.gather(
            *(self._exchange(r, n, gate) for r, n in zip(requests, notes, strict=True))
        )
        self.exchanges += sorted(exchanges, key=lambda exchange: exchange.sent_at)
        sent = [exchange.sent_at for exchange in exchanges]
        return Together(tuple(exchanges), max(sent) - min(sent))

    async def send_and_drop(self, request: WireRequest, point: DropPoint) -> Exchange:
        """Send a request, and leave its response at this point by a reset."""
        self.budget.spend()
        sent_at = time.monotonic()
        response: WireResponse | None = None
        failure = f"the client left {point.value}"
        try:
            async with asyncio.timeout(self.limits.timeout):
                async with await RawConnection.open(self.target.origin) as connection:
                    sent_at = await connection.send(request)
                    response = await connection.read_until(point)
                    connection.abort()
        except ConnectionFailed as error:
            failure = str(error)
        except TimeoutError:
            failure = f"no response within {self.limits.timeout:g} s"
        return self._keep(request, response, failure, f"dropped {point.value}", sent_at)

    async def send_and_leave(self, request: WireRequest, after: float) -> Exchange:
        """Send a request, and leave after so many seconds, during the handler, by a reset."""
        self.budget.spend()
        sent_at = time.monotonic()
        failure = f"the client left {after:g} s after it had sent its request"
        response: WireResponse | None = None
        try:
            async with asyncio.timeout(after + self.limits.timeout):
                async with await RawConnection.open(self.target.origin) as connection:
                    sent_at = await connection.send(request)
                    try:
                        async with asyncio.timeout(after):
                            response = await connection.read_response()
                            failure = ""
                    except TimeoutError:
                        connection.abort()
        except ConnectionFailed as error:
            failure = str(error)
        except TimeoutError:
            failure = f"not sent within {self.limits.timeout:g} s"
        return self._keep(request, response, failure, "left during the handler", sent_at)

    async def retry(self, request: WireRequest, note: str = "retry") -> Exchange:
        """Send a request until it is not in flight any more, as a good client does.

        Returns the last exchange: after `limits.patience` that may be an in-flight answer.
        """
        ends_at = time.monotonic() + self.limits.patience
        while True:
            exchange = await self.send(request, note)
            if exchange.status not in self.profile.in_flight or time.monotonic() >= ends_at:
                return exchange
            await asyncio.sleep(_retry_after(exchange.response))

    async def effects(self, operation: Operation) -> int | None:
        """Return how often the operation had its effect; None if the target cannot tell."""
        counter = self.target.effects
        if counter is None:
            return None
        return await counter.count(operation, self.exchanges_of(operation)) - operation.before

    def exchanges_of(self, operation: Operation) -> list[Exchange]:
        """Return the exchanges that carried the operation's key."""
        key = operation.key.encode("ascii")
        return [
            exchange
            for exchange in self.exchanges
            if any(key in line for line in exchange.request.header_lines(self.target.key_header))
        ]

    async def _exchange(self, request: WireRequest, note: str, gate: asyncio.Barrier) -> Exchange:
        sent_at = time.monotonic()
        response: WireResponse | None = None
        failure = ""
        try:
            async with asyncio.timeout(self.limits.timeout):
                opened = RawConnection.open(self.target.origin, together=gate.parties)
                async with await opened as connection:
                    await connection.send_all_but_last_byte(request)
                    await gate.wait()
                    sent_at = await connection.send_last_byte()
                    response = await connection.read_response()
        except ConnectionFailed as error:
            failure = str(error)
            await gate.abort()
        except asyncio.BrokenBarrierError:
            failure = "not sent: another connection of this round failed"
        except TimeoutError:
            failure = f"no response within {self.limits.timeout:g} s"
        answered_at = time.monotonic()
        if response is not None:
            # A hundred replays of a large response are kept once.
            body = self._bodies.setdefault(response.body, response.body)
            response = replace(response, body=body)
        return Exchange(request, response, failure, note, sent_at, answered_at)

    def _keep(
        self,
        request: WireRequest,
        response: WireResponse | None,
        failure: str,
        note: str,
        sent_at: float,
    ) -> Exchange:
        exchange = Exchange(request, response, failure, note, sent_at, time.monotonic())
        self.exchanges.append(exchange)
        return exchange


class Probe(Protocol):
    """Checks one guarantee.

    sends   one sentence for a dry run: what it sends, with counts
    """

    guarantee: ClassVar[Guarantee]
    sends: ClassVar[str]

    async def run(self, run: ProbeRun) -> Verdict:
        """Send, look, judge."""


def _retry_after(response: WireResponse | None) -> float:
    """Return how long to wait before a retry; a server cannot make it long."""
    text = response.header("retry-after") if response is not None else None
    seconds = (
        float(text)
        if text is not None and text.isascii() and text.isdigit()
        else RETRY_PAUSE_SECONDS
    )
    return min(max(seconds, RETRY_PAUSE_SECONDS), 2.0)
