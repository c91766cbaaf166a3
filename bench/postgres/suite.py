"""`python -m bench postgres`: everything against one server, in turns.

A slice is two seconds of work after a warm-up, a round one slice of every contestant, and a figure
the median of its slices.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.servers.postgres import Postgres

from bench.figures import Ratio, Report, Timing, in_turns
from bench.postgres import oncekey_runs, transactions, wal
from bench.postgres import server as servers
from bench.postgres.handwritten import CALLERS as HAND_CALLERS
from bench.postgres.handwritten import by_hand
from bench.postgres.peers import peers
from bench.postgres.pgbench import Pgbench, pgbench

ROUNDS = 5
CALLERS = (1, 64, 256)
THREADS = 64
REPLAY_CALLERS = 64
RAW_WANTED = {1: 0.6, 64: 2.0, 256: 3.0}
THREADS_WANTED = 1.2
REPLAY_WANTED = 0.7
PEER_WANTED = 10.0
DATABASE = "oncekey"

Slice = Callable[[int], float]


def run() -> list[Report]:
    with servers.started() as server, pgbench(server) as raw:
        url = server.create_database(DATABASE)
        return [
            _first_runs(server, raw, url),
            _replays(raw, url),
            transactions.report(server),
            wal.report(server, DATABASE),
        ]


def _first_runs(server: Postgres, raw: Pgbench, url: str) -> Report:
    slices: dict[str, Slice] = {}
    for callers in CALLERS:
        slices[_raw(callers)] = _slice(raw.lifecycles, callers)
        slices[_ours(callers)] = _slice(oncekey_runs.in_tasks, url, callers)
    blocking = f"oncekey, {THREADS} threads"
    slices[blocking] = _slice(oncekey_runs.in_threads, url, THREADS)
    hands, others = by_hand(server), peers(server)
    timings = in_turns({**slices, **hands, **others}, ROUNDS, lines=True)
    ratios = [_against(timings, _ours(n), _raw(n), RAW_WANTED[n]) for n in CALLERS]
    ratios.append(_against(timings, blocking, _raw(THREADS), THREADS_WANTED))
    for callers, hand in zip(HAND_CALLERS, hands, strict=True):
        ratios.append(_against(timings, _ours(callers), hand, None))
    ratios += [_against(timings, _ours(THREADS), peer, PEER_WANTED) for peer in others]
    title = f"PostgreSQL {servers.version(server)}, fsync on: a claim and a finish"
    return Report(title, list(timings.values()), ratios)


def _replays(raw: Pgbench, url: str) -> Report:
    known = oncekey_runs.Known(url)
    stored = f"oncekey, store, {REPLAY_CALLERS} tasks"
    look_up = f"pgbench, {REPLAY_CALLERS} clients"
    timings = in_turns(
        {
            look_up: _slice(raw.look_ups, REPLAY_CALLERS),
            stored: _slice(known.from_the_store, REPLAY_CALLERS),
            "oncekey, cache, 1 caller": _slice(known.from_the_cache),
        },
        ROUNDS,
        lines=True,
    )
    return Report(
        "PostgreSQL, replays (pgbench: a look-up by primary key)",
        list(timings.values()),
        [_against(timings, stored, look_up, REPLAY_WANTED)],
    )


def _raw(callers: int) -> str:
    return f"pgbench, {callers} client{'s' if callers > 1 else ''}"


def _ours(callers: int) -> str:
    return f"oncekey, {callers} task{'s' if callers > 1 else ''}"


def _slice(measure: Callable[..., float], *args: object) -> Slice:
    """A slice that does not care which round it is."""
    return lambda _: measure(*args)


def _against(timings: dict[str, Timing], mine: str, theirs: str, wanted: float | None) -> Ratio:
    return Ratio(f"{mine} against {theirs}", timings[theirs].us / timings[mine].us, wanted)
