"""`make verify-peers`: the verifier on each peer, one after the other, and what it says as a table.

Every peer is served by uvicorn in a process of its own. Statuses on which the peers differ with
reason are all allowed, so that the table compares what happens, not numbers. Three rows have runs
of their own: keys that are kept for a short time, a lease that is shorter than the handler, and a
response that sets a cookie.
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
from tests.support.verified_apis import payments_target

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
SLOW_SECONDS = 2.5  # see examples/broken/payments.toml
SHORT_LEASE_SECONDS = 1.0
SHORT_KEEP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A middleware.

    settings    how it was set up here
    documents   what its own documentation says about what it does not do
    has_lease   False if there is none to shorten
    """

    name: str
    package: str | None
    settings: str
    documents: str = ""
    has_lease: bool = True

    @property
    def version(self) -> str:
        return version(self.package) if self.package else ""


PEERS = (
    Peer(
        "oncekey",
        "oncekey",
        "`caller=` the verified account; `memory://`; the rest as it is",
        "A 5xx of an operation that is not retry-safe is stored; `retry_safe=True` would free it.",
    ),
    Peer(
        "idemkit",
        "idemkit",
        "`HttpConfig(scope=` the verified account`)`; `InMemoryBackend()`; the rest as it is",
        "Only 200, 201 and 202 are stored unless `cacheable_status` says more; over HTTP the lease "
        "is not renewed, so it has to be longer than the handler (default 30 s); the record is "
        "fenced, so what can repeat is the effect.",
    ),
    Peer(
        "fastapi-idempotency",
        "fastapi-idempotency",
        "`scope=` the verified account; `MemoryStore()`, its default; the rest as it is",
        "5xx responses and responses that set cookies are never stored.",
    ),
    Peer(
        "asgi-idempotency-header",
        "asgi-idempotency-header",
        "`MemoryBackend()`; it has no notion of callers, and no lease",
        "Only JSON responses are stored; two users with the same key are taken for one.",
        has_lease=False,
    ),
    Peer(
        "bare",
        None,
        "no middleware: what the verifier says where nothing is guarded",
        has_lease=False,
    ),
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
        if "KEEP_SECONDS" in env:
            target = replace(target, keep_seconds=float(env["KEEP_SECONDS"]))
        done = await verify(target, PROFILE, probes, limits=LIMITS)
    said = ", ".join(f"{key}={value}" for key, value in env.items())
    print(
        f"{peer.name} {peer.version} {said}: {done.requests} requests, {done.seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    return {verdict.guarantee: verdict for verdict in done.verdicts}


async def verdict_of(peer: Peer, guarantee: Guarantee, **env: str) -> Verdict:
    """Serves a peer with these settings and runs one probe on it."""
    probes = [probe for probe in PROBES if probe.guarantee is guarantee]
    return (await verdicts_of(peer, probes, env))[guarantee]


async def rows() -> list[Row]:
    whole: dict[str, dict[Guarantee, Verdict]] = {}
    expiries: dict[str, Verdict | None] = {}
    leases: dict[str, Verdict | None] = {}
    cookies: dict[str, Verdict | None] = {}
    expiry, slow, fidelity = Guarantee.EXPIRY, Guarantee.SLOW_HANDLER, Guarantee.REPLAY_FIDELITY
    usual = [probe for probe in PROBES if probe.guarantee is not expiry]
    keep, lease = f"{SHORT_KEEP_SECONDS:g}", f"{SHORT_LEASE_SECONDS:g}"
    for peer in PEERS:
        name = peer.name
        whole[name] = await verdicts_of(peer, usual, {})
        expiries[name] = await verdict_of(peer, expiry, KEEP_SECONDS=keep)
        leases[name] = await verdict_of(peer, slow, LEASE_SECONDS=lease) if peer.has_lease else None
        cookies[name] = await verdict_of(peer, fidelity, COOKIES="1")
    short_lease = f"with a lease of {lease} s and a handler of {SLOW_SECONDS:g} s"
    return [
        *(
            Row(one.title, one.slug, {name: found[one] for name, found in whole.items()})
            for one in whole[PEERS[0].name]
        ),
        Row(f"{expiry.title}: {keep} s", expiry.slug, expiries),
        Row(f"{slow.title}, {short_lease}", f"{slow.slug}-short-lease", leases),
        Row("A replay of a response that sets a cookie", f"{fidelity.slug}-cookie", cookies),
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
