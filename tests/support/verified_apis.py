"""APIs to run the verifier on, served in this process or in one of their own, and their targets.

broken    the servers of examples/broken
demo      the payments API of `oncekey demo`
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from examples.broken.catalog import SERVERS
from examples.broken.guard import KEEP_SECONDS
from examples.broken.payments import ALICE, BOB, payments_api

from oncekey.demo.cards import SLOW_SECONDS, Card
from oncekey.demo.environment import Environment
from oncekey.demo.server import Server, bind
from oncekey.verify.raw_connection import Origin, RawConnection
from oncekey.verify.recorded_exchange import Exchange, WireRequest
from oncekey.verify.target import Caller, Operation, RequestTemplate, Target, Variant
from oncekey.verify.verdict import Fault

# Longer than STALE_SECONDS of examples/broken/stale_reset.py.
PAYMENT_SLOW_SECONDS = 2.5
_JSON = (("Content-Type", "application/json"),)


@dataclass(frozen=True, slots=True)
class EffectsOfOrder:
    """Asks `GET /effects?order=` of examples/broken."""

    origin: Origin
    is_total: bool = False
    sees_lost_responses: bool = True

    def describe(self) -> str:
        return "GET /effects?order="

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        path = f"/effects?order={operation.values['unique']}"
        async with await RawConnection.open(self.origin) as connection:
            await connection.send(WireRequest("GET", path))
            response = await connection.read_response()
        return int(json.loads(response.body)["count"])


@dataclass(frozen=True, slots=True)
class ActsOfProvider:
    """Reads the ledger of the demo's payment provider."""

    ledger: Path
    is_total: bool = False
    sees_lost_responses: bool = True

    def describe(self) -> str:
        return "the provider's ledger"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        return await asyncio.to_thread(self._count, operation.values["unique"])

    def _count(self, order: str) -> int:
        with closing(sqlite3.connect(self.ledger)) as ledger:
            asked = ledger.execute('SELECT count(*) FROM acts WHERE "order" = ?', (order,))
            return int(asked.fetchone()[0])


def payments_target(origin: Origin) -> Target:
    """The API of examples/broken/payments.py, with every variant that it can serve."""
    return Target(
        origin=origin,
        variants={
            Variant.MAIN: _post("/payments"),
            Variant.OTHER_BODY: _post("/payments", cents=900),
            Variant.OTHER_PATH: _post("/refunds"),
            Variant.SLOW: _post("/payments", seconds=PAYMENT_SLOW_SECONDS),
            Variant.SLOW_FAILING: _post(
                "/payments", seconds=PAYMENT_SLOW_SECONDS, provider="breaks"
            ),
            Variant.REJECTED: _post("/payments", provider="declines"),
            Variant.FAILING: _post("/payments", provider="breaks"),
            Variant.NO_CONTENT: _post("/payments", receipt="none"),
            Variant.LARGE: _post("/payments", receipt="long"),
        },
        caller=_bearer("Alice", ALICE),
        other_caller=_bearer("Bob", BOB),
        bad_caller=_bearer("somebody", ALICE[:-4] + "0000"),
        effects=EffectsOfOrder(origin),
        slow_seconds=PAYMENT_SLOW_SECONDS,
    )


def demo_target(environment: Environment, charge: str) -> Target:
    """The payments API of the demo, with the cards that make its provider misbehave.

    charge   the id of one of Ada's charges, which she can give back cent by cent
    """
    ada, grace = environment.data_dir.people
    origin = origin_of(environment.url)
    return Target(
        origin=origin,
        variants={
            Variant.MAIN: _post("/charges"),
            Variant.OTHER_BODY: _post("/charges", cents=900),
            Variant.OTHER_PATH: RequestTemplate(
                "POST", f"/charges/{charge}/refunds", _JSON, json.dumps({"cents": 1})
            ),
            Variant.SLOW: _post("/charges", card=Card.SLOW),
            Variant.REJECTED: _post("/charges", card=Card.DECLINED),
            Variant.FAILING: _post("/charges", card=Card.FLAKY),
        },
        caller=_bearer("Ada", ada.token),
        other_caller=_bearer("Grace", grace.token),
        bad_caller=_bearer("somebody", "no token of this shop"),
        effects=ActsOfProvider(environment.data_dir.provider),
        slow_seconds=SLOW_SECONDS,
    )


# What is violated as well, because it follows from the fault.
FOLLOWS: dict[str, set[Fault]] = {}


def expected_faults(name: str) -> set[Fault]:
    """The faults that a verification of this server may name; the first is its own."""
    own = {fault for fault in Fault if fault.slug == name}
    return own | FOLLOWS.get(name, set())


@asynccontextmanager
async def served_broken(name: str, *, keep_seconds: float | None = None) -> AsyncIterator[Target]:
    """Serves one of examples/broken on this event loop, and yields its target."""
    guard = SERVERS[name](keep_seconds=keep_seconds or KEEP_SECONDS)
    server = Server(payments_api(guard), bind(0))
    await server.start()
    try:
        yield replace(payments_target(origin_of(server.url)), keep_seconds=keep_seconds)
    finally:
        await server.stop()


@asynccontextmanager
async def served_demo() -> AsyncIterator[Target]:
    """Starts the demo in a temporary folder, with its provider, and yields its target."""
    with tempfile.TemporaryDirectory(prefix="oncekey-verify-") as folder:
        async with Environment(Path(folder)) as environment:
            yield demo_target(environment, await _charge_of_ada(environment))


async def _charge_of_ada(environment: Environment) -> str:
    token = environment.data_dir.people[0].token
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "to-refund"}
    body = {"order": "to-refund", "cents": 1_000}
    async with httpx.AsyncClient(base_url=environment.url, headers=headers) as client:
        made = (await client.post("/charges", json=body)).raise_for_status()
    return str(made.json()["id"])


def origin_of(url: str) -> Origin:
    """The origin of an address such as http://127.0.0.1:8000."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return Origin(parts.scheme, parts.hostname, parts.port)


def _post(path: str, *, cents: int = 500, **fields: object) -> RequestTemplate:
    body = json.dumps({"order": "{{unique}}", "cents": cents, **fields})
    return RequestTemplate("POST", path, _JSON, body)


def _bearer(name: str, token: str) -> Caller:
    return Caller(name, (("Authorization", f"Bearer {token}"),))
