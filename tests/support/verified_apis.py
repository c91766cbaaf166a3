"""APIs to run the verifier on, served in this process or in one of their own, and their targets.

broken    the servers of examples/broken
demo      the payments API of `oncekey demo`
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from examples.broken.catalog import SERVERS
from examples.broken.guard import KEEP_SECONDS
from examples.broken.payments import payments_api

from oncekey.demo.cards import SLOW_SECONDS, Card
from oncekey.demo.environment import Environment
from oncekey.demo.server import Server, bind
from oncekey.verify.effect_counters import SqlCounter
from oncekey.verify.raw_connection import Origin
from oncekey.verify.target import Caller, RequestTemplate, Target, Variant
from oncekey.verify.target_file import read_target_file

PAYMENTS_FILE = Path(__file__).parents[2] / "examples" / "broken" / "payments.toml"
PROVIDER_ACTS = 'SELECT count(*) FROM acts WHERE "order" = :unique'
_JSON = (("Content-Type", "application/json"),)


def payments_target(origin: Origin) -> Target:
    """The API of examples/broken/payments.py, as its TOML file tells about it."""
    settings = read_target_file(PAYMENTS_FILE).target
    settings.url = f"{origin}/payments"
    return settings.target()


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
        effects=SqlCounter(
            f"sqlite:///{environment.data_dir.provider}", "the provider's ledger", PROVIDER_ACTS
        ),
        slow_seconds=SLOW_SECONDS,
    )


@asynccontextmanager
async def served_broken(
    name: str,
    *,
    keep_seconds: float | None = None,
    now: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Target]:
    """Serves one of examples/broken on this event loop, and yields its target."""
    guard = SERVERS[name](now, keep_seconds or KEEP_SECONDS)
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
    async with httpx.AsyncClient(base_url=environment.url, headers=headers, timeout=60) as client:
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
