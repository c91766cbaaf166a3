"""Guarded FastStream handlers, on FastStream's test brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from faststream import AckPolicy, Depends
from faststream.exceptions import AckMessage, NackMessage, RejectMessage
from faststream.kafka import KafkaBroker, TestKafkaBroker
from faststream.message import AckStatus, StreamMessage
from faststream.rabbit import RabbitBroker, TestRabbitBroker

from oncekey import AsyncOnce, ConfigurationError, Once
from oncekey.queues import faststream as guard
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.faststream import IdempotencyMiddleware
from oncekey.queues.redrive import REDRIVE_HEADER
from oncekey.stores.memory import AsyncMemoryStore
from oncekey.testing import AsyncFaultyStore

ACKED, NACKED, REJECTED = AckStatus.ACKED, AckStatus.NACKED, AckStatus.REJECTED


class Shop:
    """A guarded handler, how often it ran and how its messages ended. `body` is what it does."""

    def __init__(self, once: AsyncOnce, **options: Any) -> None:
        settings = {"name": "shipping", "key": "json:$.id", "hold_max": "0s", **options}
        self.guard = IdempotencyMiddleware(once, **settings)
        self.runs: list[str] = []
        self.ends: list[AckStatus | None] = []
        self.messages: list[StreamMessage[Any]] = []
        self.body: Callable[[str], Any] = lambda id: {"shipped": id}
        self.broker = RabbitBroker(middlewares=[self.guard])

        @self.broker.subscriber(
            "orders", ack_policy=AckPolicy.REJECT_ON_ERROR, parser=self._remember
        )
        async def ship(order: dict[str, Any]) -> Any:
            self.runs.append(order["id"])
            result = self.body(order["id"])
            return await result if isinstance(result, Awaitable) else result

    async def _remember(self, raw: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
        message: StreamMessage[Any] = await parse(raw)
        self.messages.append(message)
        return message

    async def deliver(
        self, id: str, headers: dict[str, str] | None = None, **more: Any
    ) -> tuple[AckStatus | None, Any]:
        """Deliver a message: how it ended, and what was replied."""
        at = len(self.messages)
        order = {"id": id, **more}
        response = await self.broker.request(
            order, "orders", headers={**(headers or {})}, timeout=90
        )
        return self.messages[at].committed, await response.decode()


def with_shop(test: Callable[[Shop, AsyncOnce], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            shop = Shop(once, **options)
            async with TestRabbitBroker(shop.broker):
                await test(shop, once)

    asyncio.run(main())


def fail(id: str) -> None:
    raise ValueError("no such address")


def test_duplicate_is_acknowledged_with_the_first_reply() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        assert await shop.deliver("a") == (ACKED, {"shipped": "a"})
        assert await shop.deliver("a") == (ACKED, {"shipped": "a"})
        assert shop.runs == ["a"]

    with_shop(test)


def test_message_in_flight_elsewhere_is_not_acknowledged_and_not_handled() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        began, end = asyncio.Event(), asyncio.Event()

        async def body(id: str) -> str:
            began.set()
            await end.wait()
            return id

        shop.body = body
        first = asyncio.create_task(shop.deliver("a"))
        await began.wait()
        assert (await shop.deliver("a"))[0] is NACKED
        end.set()
        assert await first == (ACKED, "a")
        assert await shop.deliver("a") == (ACKED, "a")
        assert shop.runs == ["a"]

    with_shop(test)


def test_failure_is_rejected_now_and_whenever_it_comes_again() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        shop.body = fail
        assert (await shop.deliver("a"))[0] is REJECTED
        assert (await shop.deliver("a"))[0] is REJECTED
        assert shop.runs == ["a"]

    with_shop(test)


def test_retry_safe_handler_is_tried_max_tries_times_and_then_rejected() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        shop.body = fail
        ends = [(await shop.deliver("a"))[0] for _ in range(4)]
        assert ends == [NACKED, NACKED, REJECTED, REJECTED]
        assert shop.runs == ["a"] * 3

    with_shop(test, retry_safe=True, max_tries=3)


def test_redriven_message_runs_again_once() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        shop.body = fail
        assert (await shop.deliver("a"))[0] is REJECTED
        shop.body = lambda id: id
        assert (await shop.deliver("a", {REDRIVE_HEADER: "monday"}))[0] is ACKED
        assert (await shop.deliver("a", {REDRIVE_HEADER: "monday"}))[0] is ACKED
        assert shop.runs == ["a"] * 2

    with_shop(test)


def test_mismatch_and_missing_key_are_rejected_without_a_run() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        await shop.deliver("a", cents=1)
        assert (await shop.deliver("a", cents=2))[0] is REJECTED
        assert (await shop.deliver("", cents=2))[0] is REJECTED
        assert shop.runs == ["a"]

    with_shop(test)


def test_dead_letter_function_comes_before_the_rejection() -> None:
    letters: list[tuple[str, Kind, str]] = []

    async def keep(msg: StreamMessage[Any], disposition: Disposition) -> None:
        assert disposition.dead_letter is not None
        letters.append((msg.message_id, disposition.kind, disposition.dead_letter.error))
        if len(letters) == 1:
            raise OSError("the dead letters' own queue is gone")

    async def test(shop: Shop, once: AsyncOnce) -> None:
        shop.body = fail
        assert (await shop.deliver("a"))[0] is NACKED
        assert (await shop.deliver("a"))[0] is REJECTED
        assert [letter[1:] for letter in letters] == [
            (Kind.DEAD_LETTER, "ValueError: no such address")
        ] * 2

    with_shop(test, dead_letter=keep)


def test_store_that_is_down_acknowledges_nothing() -> None:
    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore())
        async with AsyncOnce(store) as once:
            shop = Shop(once)
            async with TestRabbitBroker(shop.broker):
                store.down = True
                assert (await shop.deliver("a"))[0] is NACKED
                store.down = False
                assert await shop.deliver("a") == (ACKED, {"shipped": "a"})
        assert shop.runs == ["a"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("signal", "ends", "runs"),
    [(AckMessage(), [ACKED] * 2, 1), (RejectMessage(), [REJECTED] * 2, 1)],
)
def test_handler_that_ends_its_message_itself_ends_it_for_good(
    signal: Exception, ends: list[AckStatus], runs: int
) -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        def end(id: str) -> None:
            raise signal

        shop.body = end
        assert [(await shop.deliver("a"))[0] for _ in ends] == ends
        assert len(shop.runs) == runs

    with_shop(test)


def test_handler_that_nacks_its_message_runs_again() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        def nack(id: str) -> None:
            raise NackMessage

        shop.body = nack
        assert (await shop.deliver("a"))[0] is NACKED
        shop.body = lambda id: {"shipped": id}
        assert await shop.deliver("a") == (ACKED, {"shipped": "a"})

    with_shop(test, backoff="0s")


def test_message_of_a_subscriber_without_a_place_for_dead_letters_goes_back() -> None:
    """An error would reject it, and this broker forgets what is rejected."""

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            guarded = IdempotencyMiddleware(
                once, name="shipping", key="json:$.id", hold_max="0s", broker_name="eu"
            )
            broker = KafkaBroker(middlewares=[guarded])
            messages: list[StreamMessage[Any]] = []

            async def remember(raw: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
                messages.append(await parse(raw))
                return messages[-1]

            @broker.subscriber("orders", group_id="g", ack_policy=AckPolicy.ACK, parser=remember)
            async def ship(order: dict[str, Any]) -> None: ...

            async with TestKafkaBroker(broker):
                await broker.publish({"id": "a"}, "orders")
            assert [message.committed for message in messages] == [NACKED]

    asyncio.run(main())


@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.MANUAL])
def test_subscriber_that_acknowledges_early_is_refused(policy: AckPolicy) -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            guarded = IdempotencyMiddleware(once, name="shipping", key="json:$.id")
            broker = RabbitBroker(middlewares=[guarded])
            runs = []

            @broker.subscriber("orders", ack_policy=policy)
            async def ship(order: dict[str, Any]) -> None:
                runs.append(order)

            with pytest.raises(ConfigurationError, match="acknowledges its message before"):
                guarded.check(broker)
            async with TestRabbitBroker(broker):
                with pytest.raises(ConfigurationError, match="acknowledges its message before"):
                    await broker.publish({"id": "a"}, "orders")
            assert runs == []

    asyncio.run(main())


def test_kafka_needs_a_place_for_dead_letters() -> None:
    async def keep(msg: object, disposition: object) -> None: ...

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            for options in ({}, {"dead_letter": keep}):
                guarded = IdempotencyMiddleware(
                    once,
                    name="shipping",
                    key="json:$.id",
                    broker_name="eu",
                    **options,  # type: ignore[arg-type]
                )
                broker = KafkaBroker(middlewares=[guarded])

                @broker.subscriber("orders", group_id="g", ack_policy=AckPolicy.NACK_ON_ERROR)
                async def ship(order: dict[str, Any]) -> None: ...

                if options:
                    guarded.check(broker)
                    continue
                with pytest.raises(ConfigurationError, match="forgets a rejected message"):
                    guarded.check(broker)

    asyncio.run(main())


def test_i8_kafka_needs_a_name_of_the_broker() -> None:
    """Its messages do not tell which cluster they come from."""

    async def keep(msg: object, disposition: object) -> None: ...

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            for name in (None, "eu"):
                guarded = IdempotencyMiddleware(
                    once,
                    name="shipping",
                    key="json:$.id",
                    dead_letter=keep,
                    hold_max="0s",
                    broker_name=name,
                )
                broker = KafkaBroker(middlewares=[guarded])
                runs: list[str] = []

                @broker.subscriber("orders", group_id="g", ack_policy=AckPolicy.NACK_ON_ERROR)
                async def ship(order: dict[str, Any], runs: Any = Depends(lambda: runs)) -> None:  # noqa: B008
                    runs.append(order["id"])

                if name is None:
                    with pytest.raises(ConfigurationError, match="do not tell which broker"):
                        guarded.check(broker)
                else:
                    guarded.check(broker)
                async with TestKafkaBroker(broker):
                    await broker.publish({"id": "a"}, "orders")
                assert runs == ([] if name is None else ["a"])
            assert await once.get("shipping", "a", scope="shipping/orders on eu") is not None

    asyncio.run(main())


def test_i8_handlers_of_two_brokers_of_rabbitmq_do_not_share_a_scope() -> None:
    """Also if one middleware guards both. A node that is reached later is the same broker."""

    def raw(url: str, cluster: str) -> Any:
        connection = SimpleNamespace(url=url, server_properties={"cluster_name": cluster})
        return SimpleNamespace(channel=SimpleNamespace(connection=connection))

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            guarded = IdempotencyMiddleware(once, name="shipping", key="json:$.id")
            one, other = (RabbitBroker().subscriber("orders") for _ in range(2))
            plan = await guarded.plan_for(one, "orders", raw("amqp://n1/", "rabbit@n1"))
            assert plan.scope == "shipping/orders"
            assert await guarded.plan_for(one, "orders", raw("amqp://n2/", "rabbit@n2")) is plan
            for url, cluster in (("amqp://n1/shop", "rabbit@n1"), ("amqp://n1/", "rabbit@us")):
                with pytest.raises(ConfigurationError, match="belong to the broker"):
                    await guarded.plan_for(other, "orders", raw(url, cluster))

    asyncio.run(main())


def test_wrong_set_ups_are_refused() -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            with pytest.raises(ConfigurationError, match="key='delivery'"):
                IdempotencyMiddleware(once, name="shipping", key="delivery")
            with pytest.raises(ConfigurationError, match="unknown option"):
                IdempotencyMiddleware(once, name="shipping", key="json:$.id", leese="1s")
        with pytest.raises(ConfigurationError, match="needs an AsyncOnce"):
            IdempotencyMiddleware(Once, name="shipping", key="json:$.id")  # type: ignore[arg-type]

    asyncio.run(main())


def test_default_hold_is_a_named_limit() -> None:
    assert guard.HOLD_MAX_DEFAULT == "30s"
