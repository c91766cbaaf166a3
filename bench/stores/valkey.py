"""Valkey on one node, durable: lifecycles and replays beside the raw limit and beside peers.

`appendfsync always` is what makes the store durable, so every contestant writes to such a server.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.servers.redis_server import RedisServer

from bench.figures import Ratio, Report, Timing, in_turns
from bench.postgres import oncekey_runs
from bench.stores import redis_raw
from bench.stores.processor_time import Meter, Slice
from bench.stores.redis_peers import peers

CALLERS = 64
ROUNDS = 5
RAW_WANTED = 0.4
PEER_WANTED = 5.0
REPLAY_WANTED = 0.5

_TASKS = f"oncekey, {CALLERS} tasks"
_THREADS = f"oncekey, {CALLERS} threads"
_PIPELINED = f"the scripts by redis-py, a pipeline of {CALLERS}"
_BATCHED = f"the scripts by redis-py, a batch of {CALLERS}"
_LOOK_UPS = f"GET by redis-py, a pipeline of {CALLERS}"
_REPLAYS = f"oncekey, store, {CALLERS} tasks"


def lifecycles(server: RedisServer) -> Report:
    url = server.url()
    others = peers(url)
    meter = Meter(lambda: [server.pid])
    contestants: dict[str, Slice] = {
        _PIPELINED: _slice(redis_raw.lifecycles, url, "pipelined"),
        _BATCHED: _slice(redis_raw.lifecycles, url, "batched"),
        "oncekey, 1 task": _slice(oncekey_runs.in_tasks, url, 1),
        _TASKS: _slice(oncekey_runs.in_tasks, url, CALLERS),
        "oncekey, 256 tasks": _slice(oncekey_runs.in_tasks, url, 256),
        _THREADS: _slice(oncekey_runs.in_threads, url, CALLERS),
        **others,
    }
    timings = in_turns(meter.watched(contestants), ROUNDS, lines=True)
    ratios = [
        _against(timings, _TASKS, _PIPELINED, RAW_WANTED),
        _against(timings, _TASKS, _BATCHED, RAW_WANTED),
        _against(timings, _THREADS, _PIPELINED, RAW_WANTED),
        _against(timings, _THREADS, _BATCHED, None),
        meter.against(_TASKS, _BATCHED),
    ]
    for peer in others:
        mine = _THREADS if "threads" in peer else _TASKS
        ratios.append(_against(timings, mine, peer, PEER_WANTED))
        if mine != _TASKS:
            ratios.append(_against(timings, _TASKS, peer, None))
        ratios.append(meter.against(mine, peer))
    ratios += meter.ratios()
    title = f"{version(server)}, appendfsync always: a claim and a finish"
    return Report(title, list(timings.values()), ratios)


def replays(server: RedisServer) -> Report:
    url = server.url()
    known = oncekey_runs.Known(url)
    meter = Meter(lambda: [server.pid])
    contestants: dict[str, Slice] = {
        _LOOK_UPS: _slice(redis_raw.look_ups, url),
        _REPLAYS: _slice(known.from_the_store, CALLERS),
    }
    contestants = meter.watched(contestants)
    contestants["oncekey, cache, 1 caller"] = _slice(known.from_the_cache)
    timings = in_turns(contestants, ROUNDS, lines=True)
    ratios = [_against(timings, _REPLAYS, _LOOK_UPS, REPLAY_WANTED), *meter.ratios()]
    return Report(f"{version(server)}, replays", list(timings.values()), ratios)


def version(server: RedisServer) -> str:
    info = server.info("server")
    return f"Valkey {info['valkey_version']}"


def _slice(measure: Callable[..., float], *args: object) -> Callable[[int], float]:
    """A slice that does not care which round it is."""
    return lambda _: measure(*args)


def _against(timings: dict[str, Timing], mine: str, theirs: str, wanted: float | None) -> Ratio:
    return Ratio(f"{mine} against {theirs}", timings[theirs].us / timings[mine].us, wanted)
