"""A step's result is stored by the engine's codec, not by the operation's own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from oncekey import AsyncOnce, Once


@dataclass
class Receipt:
    charge: str


def test_a_step_of_an_operation_with_a_codec_is_stored_by_the_engines_codec() -> None:
    calls: list[str] = []

    def pay(key: str) -> dict[str, str]:
        calls.append(key)
        return {"id": "ch_1"}

    def body(attempt: Any) -> Receipt:
        paid = attempt.step("pay", pay)
        if len(runs) == 1:
            raise ConnectionError
        return Receipt(paid["id"])

    runs = [1]
    with Once("memory://") as once:
        with pytest.raises(ConnectionError):
            once.run("order", "k", body, codec=Receipt, retry_safe=True)
        runs.append(2)
        assert once.run("order", "k", body, codec=Receipt, retry_safe=True).value == Receipt("ch_1")
    assert len(calls) == 1


def test_an_async_step_of_an_operation_with_a_codec_is_stored_by_the_engines_codec() -> None:
    calls: list[str] = []

    async def pay(key: str) -> dict[str, str]:
        calls.append(key)
        return {"id": "ch_1"}

    async def body(attempt: Any) -> Receipt:
        paid = await attempt.step("pay", pay)
        if len(runs) == 1:
            raise ConnectionError
        return Receipt(paid["id"])

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            with pytest.raises(ConnectionError):
                await once.run("order", "k", body, codec=Receipt, retry_safe=True)
            runs.append(2)
            result = await once.run("order", "k", body, codec=Receipt, retry_safe=True)
            assert result.value == Receipt("ch_1")

    runs = [1]
    asyncio.run(main())
    assert len(calls) == 1
