"""`python -m bench http`: what a guard costs an HTTP API.

One FastAPI app on one server (uvicorn), bare and behind each contestant, in turns in one run: reads
that pass, first runs, and replays, with 128 connections from another process. Both share the cores,
so the ratios count. Then how much memory large responses in flight take.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.servers.http_servers import Uvicorn

from bench.figures import Ratio, Report, Timing, in_turns
from bench.http import response_memory
from bench.postgres import server as servers

ROUNDS = 3
CONNECTIONS = 128
SECONDS = 2.0
WARM_UP = 1_000
KNOWN_KEYS = 500
ROOT = Path(__file__).parents[2]
PASSING_WANTED = 0.97
FIRST_WANTED = 0.6
PEER_WANTED = 4.0
REPLAY_WANTED = 1.0


class Contestant(NamedTuple):
    name: str
    app: str
    store: str = "memory://"


def run() -> list[Report]:
    with ExitStack() as opened:
        server = opened.enter_context(servers.started())
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        kits = server.create_database("idemkit")
        _prepare_idemkit(kits)
        ours = [
            Contestant("oncekey, memory", "oncekey"),
            Contestant("oncekey, SQLite", "oncekey", f"sqlite:///{folder}/keys.db"),
            Contestant("oncekey, PostgreSQL", "oncekey", server.create_database("ours")),
        ]
        peers = [
            Contestant("idemkit, memory", "idemkit"),
            Contestant("idemkit, PostgreSQL", "idemkit", kits),
            Contestant("fastapi-idempotency, memory", "fastapi_idempotency"),
            Contestant("asgi-idempotency-header, memory", "asgi_idempotency_header"),
        ]
        bare = Contestant("bare", "bare")
        return [
            _passing(bare, [ours[0], ours[2], peers[0]]),
            _first_runs(bare, [*ours, *peers]),
            _replays(bare, [*ours, *peers]),
            response_memory.report(),
        ]


def _passing(bare: Contestant, others: list[Contestant]) -> Report:
    reads = _measured([bare, *others], lambda port: _load(port, method="GET"))
    writes = _measured([bare, others[0], others[1]], _load)
    return Report(
        f"HTTP, what passes, {CONNECTIONS} connections (GET)",
        [*reads.values()],
        [
            *(_against(reads, other.name, bare.name, PASSING_WANTED) for other in others[:2]),
            _against(reads, others[2].name, bare.name),
            *(
                _against(writes, other.name, bare.name, PASSING_WANTED, "POST without a key: ")
                for other in others[:2]
            ),
        ],
    )


def _first_runs(bare: Contestant, others: list[Contestant]) -> Report:
    seen = _measured([bare, *others], lambda port: _load(port, uuid.uuid4().hex))
    ours, theirs = "oncekey, PostgreSQL", "idemkit, PostgreSQL"
    return Report(
        f"HTTP, first runs, {CONNECTIONS} connections",
        list(seen.values()),
        [
            _against(seen, ours, bare.name, FIRST_WANTED),
            _against(seen, ours, theirs, PEER_WANTED),
            *(
                _against(seen, other.name, bare.name)
                for other in others
                if other.name not in (ours, theirs)
            ),
        ],
    )


def _replays(bare: Contestant, others: list[Contestant]) -> Report:
    def known(port: int) -> float:
        prefix = uuid.uuid4().hex
        keys = ["--prefix", prefix, "--known", str(KNOWN_KEYS)]
        _client(port, *keys, "--connections", "1", "--most", str(KNOWN_KEYS), "--seconds", "60")
        return _load(port, prefix, known=KNOWN_KEYS)

    seen = _measured([bare, *others], known)
    return Report(
        f"HTTP, replays, {CONNECTIONS} connections",
        list(seen.values()),
        [
            _against(seen, other.name, bare.name, REPLAY_WANTED if other.app == "oncekey" else None)
            for other in others
        ],
    )


def _against(
    seen: dict[str, Timing], one: str, other: str, wanted: float | None = None, what: str = ""
) -> Ratio:
    return Ratio(f"{what}{one} against {other}", seen[other].us / seen[one].us, wanted)


# --- one slice ------------------------------------------------------------------------------------


def _measured(contestants: list[Contestant], load: Callable[[int], float]) -> dict[str, Timing]:
    def slice(contestant: Contestant) -> Callable[[int], float]:
        def measure(_: int) -> float:
            with _served(contestant) as port:
                return load(port)

        return measure

    return in_turns({one.name: slice(one) for one in contestants}, ROUNDS, lines=True)


@contextmanager
def _served(contestant: Contestant) -> Iterator[int]:
    env = {"CONTESTANT": contestant.app, "STORE": contestant.store}
    with Uvicorn("bench.http.apps:app", http="httptools", cwd=ROOT, env=env) as server:
        yield server.port


def _load(port: int, prefix: str = "", *, known: int = 0, method: str = "POST") -> float:
    """Microseconds per answer, after a warm-up under other keys (or the same, if known)."""
    options = ["--method", method, "--known", str(known)]
    warm = prefix if known or not prefix else f"{prefix}-warm"
    _client(port, *options, "--prefix", warm, "--most", str(WARM_UP))
    told = _client(port, *options, "--prefix", prefix, "--seconds", str(SECONDS))
    return float(told["seconds"]) / int(told["answers"]) * 1_000_000


def _client(port: int, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.http.load", "--port", str(port)]
    command += ["--connections", str(CONNECTIONS)] if "--connections" not in options else []
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=True, cwd=ROOT
    )
    told: dict[str, Any] = json.loads(done.stdout)
    wrong = {s: n for s, n in told["statuses"].items() if s not in ("200", "201")}
    if sum(wrong.values()) > int(told["answers"]) // 100:
        raise RuntimeError(f"too many answers were {wrong}")
    return told


def _prepare_idemkit(url: str) -> None:
    """In another process: importing it warns, and its tables are no slice of ours."""
    code = "import asyncio, sys; from idemkit.backends.postgres import init_pg as make"
    code += "; asyncio.run(make(sys.argv[1]))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, url], check=True)
