"""A switch that kills its process at a point of a message's way, and where it is asked.

Stores ask it around claims and finishes, brokers after a receive and around a removal of messages;
consumer_kills.py has the points of the handler. SIGKILL leaves no time for anything. A store also
notes the finishes that it has confirmed, in the log of effects.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.queues.effect_log import is_of_a_message, note_finishes

from oncekey.queues.disposition import Kind


class KillSwitch:
    """Kills this process at the first time that it comes to a point; never if the point is ""."""

    def __init__(self, point: str = "") -> None:
        self._point = point

    @property
    def kills(self) -> bool:
        return bool(self._point)

    def at(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


def _verbs(commands: Sequence[Any]) -> list[str]:
    return [type(command).__name__ for command in commands if is_of_a_message(command)]


def kill_in_store(store: Any, switch: KillSwitch, log: Path) -> Any:
    """Have a store kill its process before or after it applies a claim or a finish."""
    apply = store.apply

    def killing_apply(commands: Sequence[Any], /) -> Any:
        verbs = _verbs(commands)
        for verb in verbs:
            switch.at(f"before {verb}")
        replies = apply(commands)
        note_finishes(log, commands, replies)
        for verb in verbs:
            switch.at(f"after {verb}")
        return replies

    store.apply = killing_apply
    return store


def kill_in_async_store(store: Any, switch: KillSwitch, log: Path) -> Any:
    apply = store.apply

    async def killing_apply(commands: Sequence[Any], /) -> Any:
        verbs = _verbs(commands)
        for verb in verbs:
            switch.at(f"before {verb}")
        replies = await apply(commands)
        note_finishes(log, commands, replies)
        for verb in verbs:
            switch.at(f"after {verb}")
        return replies

    store.apply = killing_apply
    return store


def _removes(settled: Sequence[Any]) -> bool:
    return any(disposition.kind is Kind.REMOVE for _, disposition in settled)


def kill_in_broker(broker: Any, switch: KillSwitch) -> None:
    """Have a broker kill its process when it has messages, and around the removal of some."""
    receive, settle = broker.receive, broker.settle

    def killing_receive(most: int, wait: float, lease: float) -> Any:
        messages = receive(most, wait, lease)
        if messages:
            switch.at("after receive")
        return messages

    def killing_settle(settled: Sequence[Any]) -> None:
        if _removes(settled):
            switch.at("before settle")
        settle(settled)
        if _removes(settled):
            switch.at("after settle")

    broker.receive, broker.settle = killing_receive, killing_settle


def kill_in_async_broker(broker: Any, switch: KillSwitch) -> None:
    receive, settle = broker.receive, broker.settle

    async def killing_receive(most: int, wait: float, lease: float) -> Any:
        messages = await receive(most, wait, lease)
        if messages:
            switch.at("after receive")
        return messages

    async def killing_settle(settled: Sequence[Any]) -> None:
        if _removes(settled):
            switch.at("before settle")
        await settle(settled)
        if _removes(settled):
            switch.at("after settle")

    broker.receive, broker.settle = killing_receive, killing_settle
