"""`make verify-peers`: the verifier on each peer, one after the other, and what it says as a table.

Every peer is served by uvicorn in a process of its own. Statuses on which the peers differ with
reason are all allowed, so that the table compares what happens, not numbers. Two rows have runs of
their own: a lease that is shorter than the handler, and a response that sets a cookie.
"""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.support.servers.http_servers import Uvicorn
from tests.support.verified_apis import PAYMENT_SLOW_SECONDS, payments_target

from bench.verifier.comparison_page import page, written
from oncekey.verify.probe import Limits, Probe
from oncekey.verify.probes import PROBES
from oncekey.verify.profile import IETF
from oncekey.verify.raw_connection import Origin
from oncekey.verify.verdict import Guarantee, Verdict
from oncekey.verify.verification import verify

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "verified-peers.md"

# The draft's rules, with the statuses that any of the peers documents.
PROFILE = replace(
    IETF,
    name="peers",
    title="IETF draft-07, with every status that one of the peers documents",
    in_flight=frozenset({409, 423}),
    bad_key=frozenset({400, 422}),
    missing_key=frozenset(),
    leaves_out=frozenset({Guarantee.MISSING_KEY}),
)
LIMITS = Limits(requests=5_000, total_seconds=300)
SHORT_LEASE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A middleware: its name, what its settings were, and whether it has a lease to shorten."""

    name: str
    package: str | None
    settings: str
    has_lease: bool = True

    @property
    def version(self) -> str:
        return version(self.package) if self.package else ""


PEERS = (
    Peer("oncekey", "oncekey", "`caller=` the verified account; `memory://`; the rest as it is"),
    Peer(
        "idemkit",
        "idemkit",
        "`HttpConfig(scope=` the verified account`)`; `InMemoryBackend()`; the rest as it is",
    ),
    Peer(
        "fastapi-idempotency",
        "fastapi-idempotency",
        "`scope=` the verified account; `MemoryStore()`, its default; the rest as it is",
    ),
    Peer(
        "asgi-idempotency-header",
        "asgi-idempotency-header",
        "`MemoryBackend()`; it has no notion of callers, and no lease",
        has_lease=False,
    ),
    Peer("bare", None, "no middleware: what the verifier says where nothing is guarded", False),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was asked, and each peer's verdict; None if it was not asked."""

    title: str
    slug: str
    verdicts: Mapping[str, Verdict | None]


async def verdicts_of(
    peer: Peer, probes: Sequence[Probe], env: Mapping[str, str]
) -> dict[Guarantee, Verdict]:
    """Serves a peer and runs these probes on it."""
    app = "bench.verifier.peer_apps:app"
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Uvicorn(app, cwd=ROOT, env={"PEER": peer.name, **env}))
        target = payments_target(Origin("http", "127.0.0.1", server.port))
        done = await verify(target, PROFILE, probes, limits=LIMITS)
    said = ", ".join(f"{key}={value}" for key, value in env.items())
    print(
        f"{peer.name} {peer.version} {said}: {done.requests} requests, {done.seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    return {verdict.guarantee: verdict for verdict in done.verdicts}


def probes_of(*guarantees: Guarantee) -> list[Probe]:
    return [probe for probe in PROBES if probe.guarantee in guarantees]


async def rows() -> list[Row]:
    whole: dict[str, dict[Guarantee, Verdict]] = {}
    leases: dict[str, Verdict | None] = {}
    cookies: dict[str, Verdict | None] = {}
    slow, fidelity = Guarantee.SLOW_HANDLER, Guarantee.REPLAY_FIDELITY
    for peer in PEERS:
        whole[peer.name] = await verdicts_of(peer, PROBES, {})
        short = {"LEASE_SECONDS": f"{SHORT_LEASE_SECONDS:g}"}
        leases[peer.name] = (
            (await verdicts_of(peer, probes_of(slow), short))[slow] if peer.has_lease else None
        )
        with_cookie = await verdicts_of(peer, probes_of(fidelity), {"COOKIES": "1"})
        cookies[peer.name] = with_cookie[fidelity]
    asked = [probe.guarantee for probe in PROBES if probe.guarantee in whole[PEERS[0].name]]
    return [
        *(
            Row(one.title, one.slug, {name: found[one] for name, found in whole.items()})
            for one in asked
        ),
        Row(
            f"The same with a lease of {SHORT_LEASE_SECONDS:g} s and a handler of "
            f"{PAYMENT_SLOW_SECONDS:g} s",
            "slow-handler-short-lease",
            leases,
        ),
        Row("A replay of a response that sets a cookie", "replay-fidelity-cookie", cookies),
    ]


def main() -> None:
    found = asyncio.run(rows())
    today = f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}"
    text, data = page(PEERS, found, today), written(PEERS, found, today)
    PAGE.write_text(text, encoding="utf-8")
    PAGE.with_suffix(".json").write_text(data, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
