"""Drivers of generators that yield what they want done, and are sent its result.

Such a generator is a flow, a program or a plan. `perform` does what was asked for, and may wait.
What it raises goes to the caller of the driver, and the generator is not asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

E = TypeVar("E")
T = TypeVar("T")


def drive(flow: Generator[E, Any, T], perform: Callable[[E], object]) -> T:
    """Perform each effect of the flow, and return what the flow returns."""
    result: object = None
    while True:
        try:
            effect = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        result = perform(effect)


async def drive_async(flow: Generator[E, Any, T], perform: Callable[[E], Awaitable[object]]) -> T:
    """The same, where performing an effect is awaited."""
    result: object = None
    while True:
        try:
            effect = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        result = await perform(effect)
