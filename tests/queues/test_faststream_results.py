"""What the publishers of guarded FastStream handlers get: the handler's value, the same again for a
duplicate, and never an empty message in place of a value that is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, PublishCommand
from faststream.message import AckStatus, StreamMessage
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from pydantic import BaseModel

from oncekey import AsyncOnce, ConfigurationError, LeaseLost
from oncekey.core.events import Event, EventKind
from oncekey.queues.disposition import Disposition
from oncekey.queues.faststream import IdempotencyMiddleware

ACKED, NACKED, REJECTED = AckStatus.ACKED, AckStatus.NACKED, AckStatus.REJECTED
SHIPPED = "shipped"


class Parcel(BaseModel):
    id: str
    weight: Decimal


@dataclass
class Label:
    id: str
    cost: Decimal


class Handle(str):
    """As JSON it would come back as a plain text."""


class HandleCodec:
    name = "handle"

    def dump(self, value: Handle, /) -> bytes:
        return value.encode()

    def load(self, data: bytes, /) -> Handle:
        return Handle(data.decode())


async def plain(order: dict[str, Any]):  # type: ignore[no-untyped-def]
    """Has no annotation, so its value is stored as JSON."""
    return VALUES[order["id"]]


async def parcel(order: dict[str, Any]) -> Parcel:
    return Parcel(id=order["id"], weight=Decimal("1.50"))


async def label(order: dict[str, Any]) -> Label:
    return Label(order["id"], Decimal("1.50"))


async def cost(order: dict[str, Any]) -> Decimal:
    return Decimal("1.50")


async def handle(order: dict[str, Any]) -> Handle:
    return Handle(order["id"])


VALUES = {"decimal": Decimal("1.50"), "text": "x" * 500, "dict": {"text": "x" * 500}, "small": "x"}
Handler = Callable[[dict[str, Any]], Awaitable[Any]]


class Shop:
    """One guarded handler, with a publisher if `publishes`: what was published, and how its
    messages ended."""

    def __init__(
        self, once: AsyncOnce, handler: Handler, *, publishes: bool = True, **options: Any
    ) -> None:
        self.published: list[Any] = []
        self.ends: list[AckStatus | None] = []
        self.letters: list[Disposition] = []
        self.runs = 0
        self._messages: list[StreamMessage[Any]] = []
        shop = self

        class Watch(BaseMiddleware):
            """Stands between the guard and the handler, and sees what is published."""

            async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
                shop.runs += 1
                return await call_next(msg)

            async def publish_scope(self, call_next: Any, cmd: PublishCommand) -> Any:
                if cmd.destination.endswith(SHIPPED):
                    shop.published.append(cmd.body)
                    return None
                return await call_next(cmd)

        async def keep(msg: StreamMessage[Any], disposition: Disposition) -> None:
            shop.letters.append(disposition)

        self.guard = IdempotencyMiddleware(
            once, name="shipping", key="json:$.id", hold_max="0s", dead_letter=keep, **options
        )
        self.broker = RabbitBroker(middlewares=[self.guard, Watch])
        published = self.broker.publisher(SHIPPED)(handler) if publishes else handler
        self.broker.subscriber(
            "orders", ack_policy=AckPolicy.REJECT_ON_ERROR, parser=self._remember
        )(published)

    async def _remember(self, raw: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
        message: StreamMessage[Any] = await parse(raw)
        self._messages.append(message)
        return message

    async def deliver(self, id: str) -> AckStatus | None:
        at = len(self._messages)
        await self.broker.publish({"id": id}, "orders")
        return self._messages[at].committed


def with_shop(
    test: Callable[[Shop, AsyncOnce], Awaitable[None]],
    handler: Handler,
    *,
    cache: int | None = None,
    **options: Any,
) -> None:
    async def main() -> None:
        async with AsyncOnce("memory://", cache=cache) as once:
            shop = Shop(once, handler, **options)
            async with TestRabbitBroker(shop.broker):
                await test(shop, once)

    asyncio.run(main())


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("cache", [None, 0])
@pytest.mark.parametrize(
    ("handler", "value"),
    [
        (parcel, Parcel(id="a", weight=Decimal("1.50"))),
        (label, Label("a", Decimal("1.50"))),
        (cost, Decimal("1.50")),
    ],
)
def test_value_of_an_annotated_type_is_published_for_each_delivery(
    handler: Handler, value: object, cache: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        shop.guard.check(shop.broker)
        assert [await shop.deliver("a") for _ in range(2)] == [ACKED, ACKED]
        assert shop.published == [value, value]
        assert shop.runs == 1

    with_shop(test, handler, cache=cache)
    assert warnings_in(caplog) == []


@pytest.mark.parametrize(
    ("id", "reason"),
    [("decimal", "NotReplayable"), ("text", "max_bytes"), ("dict", "max_bytes")],
)
def test_value_that_is_not_stored_is_published_once_and_its_duplicate_is_a_dead_letter(
    id: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    async def test(shop: Shop, once: AsyncOnce) -> None:
        once.subscribe(seen.append)
        assert await shop.deliver(id) is ACKED
        assert shop.published == [VALUES[id]]
        (line,) = warnings_in(caplog)
        assert "could not be stored" in line
        assert reason in line
        assert await shop.deliver(id) is REJECTED
        assert (shop.published, shop.runs) == ([VALUES[id]], 1)
        (letter,) = shop.letters
        assert "NotReplayable" in letter.reason

    with_shop(test, plain, max_bytes=100)
    assert len([event for event in seen if event.kind is EventKind.DEAD_LETTER]) == 1


def test_a_small_text_is_no_value_that_could_not_be_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        assert [await shop.deliver("small") for _ in range(2)] == [ACKED, ACKED]
        assert shop.published == ["x", "x"]

    with_shop(test, plain, max_bytes=100)
    assert warnings_in(caplog) == []


def test_value_that_is_not_stored_and_nobody_waits_for_is_no_matter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        assert [await shop.deliver("decimal") for _ in range(2)] == [ACKED, ACKED]
        assert (shop.runs, shop.letters) == (1, [])

    with_shop(test, plain, publishes=False)
    assert warnings_in(caplog) == []


def test_handler_annotated_to_return_what_cannot_be_stored_is_refused_before_it_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        with pytest.raises(ConfigurationError, match="'shipping': it returns a Handle"):
            shop.guard.check(shop.broker)
        assert await shop.deliver("a") is NACKED
        assert (shop.runs, shop.published) == (0, [])

    with_shop(test, handle)
    assert "it returns a Handle" in warnings_in(caplog)[0]


def test_codec_of_the_middleware_goes_before_the_annotation() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        shop.guard.check(shop.broker)
        assert [await shop.deliver("a") for _ in range(2)] == [ACKED, ACKED]
        assert [type(one) for one in shop.published] == [Handle, Handle]

    with_shop(test, handle, codec=HandleCodec())


def test_wrong_codec_is_refused_when_the_middleware_is_made() -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            with pytest.raises(ConfigurationError, match="no pydantic model"):
                IdempotencyMiddleware(once, name="shipping", key="json:$.id", codec=Handle)

    asyncio.run(main())


def test_message_whose_attempt_was_overtaken_comes_again_for_the_stored_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another attempt has stored its value meanwhile, and this one has none to send."""

    async def test(shop: Shop, once: AsyncOnce) -> None:
        run = once.run

        async def overtaken(*args: Any, **kwargs: Any) -> Any:
            result = await run(*args, **kwargs)
            if "shipping" in args:
                raise LeaseLost("overtaken")
            return result

        with monkeypatch.context() as patch:
            patch.setattr(once, "run", overtaken)
            assert await shop.deliver("a") is NACKED
        assert shop.published == []
        assert await shop.deliver("a") is ACKED
        assert (shop.published, shop.runs) == ([Decimal("1.50")], 1)

    with_shop(test, cost)
