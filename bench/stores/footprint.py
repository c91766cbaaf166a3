"""What one operation takes besides time: bytes on the wire, and bytes that stay stored.

Bytes on the wire are counted by the kernel, on this process' own sockets, so that they are counted
alike for every driver. Stored bytes are what the server says, before and after.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Callable, Collection
from typing import NamedTuple

from bench.postgres import load
from bench.postgres.oncekey_runs import POLICY, REQUEST, body
from oncekey import AsyncOnce

LONE_RUNS = 200
MANY_RUNS = 6_400
CALLERS = 64
STORED_KEYS = 25_600
# Where struct tcp_info of Linux has the bytes that were acknowledged, those that were received, and
# how many packets with data were sent.
_TCP_INFO_BYTES = 160
_BYTES, _BYTES_AT = struct.Struct("=QQ"), 120
_PACKETS, _PACKETS_AT = struct.Struct("=I"), 156


class Wire(NamedTuple):
    """Bytes per lifecycle in each direction, and packets sent. Where a request is one packet, a
    lone caller's packets are its round trips; gRPC sends more."""

    sent: float
    received: float
    packets: float


def on_the_wire(url: str, ports: Collection[int], callers: int) -> Wire:
    """First runs by this many tasks, after a warm-up."""
    runs = LONE_RUNS if callers == 1 else MANY_RUNS

    async def measure() -> Wire:
        async with AsyncOnce(url, policy=POLICY) as once:

            async def work(count: int) -> None:
                for _ in range(count):
                    await once.run("charge", load.fresh_key(), body, request=REQUEST)

            async def all_tasks() -> None:
                await asyncio.gather(*(work(runs // callers) for _ in range(callers)))

            await all_tasks()
            before = _counted(ports)
            await all_tasks()
            after = _counted(ports)
            return Wire(*((new - old) / runs for old, new in zip(before, after, strict=True)))

    return asyncio.run(measure())


def stored_per_key(url: str, stored: Callable[[], int]) -> float:
    """Bytes that one finished key keeps, with its index entries."""

    async def fill(keys: int) -> None:
        async with AsyncOnce(url, policy=POLICY) as once:

            async def work() -> None:
                for _ in range(keys // CALLERS):
                    await once.run("charge", load.fresh_key(), body, request=REQUEST)

            await asyncio.gather(*(work() for _ in range(CALLERS)))

    asyncio.run(fill(CALLERS * 10))  # tables, scripts and pools
    before = stored()
    asyncio.run(fill(STORED_KEYS))
    return (stored() - before) / STORED_KEYS


def _counted(ports: Collection[int]) -> tuple[int, int, int]:
    """What this process' sockets to these ports have sent and received, in how many packets."""
    sent = received = packets = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if one.getpeername()[1] not in ports:
                    continue
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            continue  # it was closed meanwhile, or is not connected
        acknowledged, got = _BYTES.unpack_from(info, _BYTES_AT)
        (written,) = _PACKETS.unpack_from(info, _PACKETS_AT)
        sent, received, packets = sent + acknowledged, received + got, packets + written
    return sent, received, packets
