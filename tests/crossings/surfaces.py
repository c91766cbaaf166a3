"""The surfaces: each guards the shop's body on an engine, and gives every call the same answer.

A surface is made with the engine, the shop, the options of a policy and, where a crossing is
transactional, the caller's database. `call` sends one request. Those of the web are in
`web_surfaces.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import dramatiq
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from faststream import AckPolicy
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from taskiq import InMemoryBroker
from tests.crossings.rows import INSERT, Rows
from tests.crossings.shop import Answer, Declined, Killed, Shop
from tests.support.reused_stores import shared_loop

from oncekey import Mismatch, OncekeyError, OperationFailed, OutcomeUnknown, StoreUnavailable
from oncekey.queues import AsyncConsumer, Consumer, Kind, MemoryBroker, Message
from oncekey.queues.celery import idempotent_task
from oncekey.queues.dramatiq import idempotent_actor
from oncekey.queues.faststream import IdempotencyMiddleware
from oncekey.queues.inbox import AsyncInbox, Inbox
from oncekey.queues.memory_broker import AsyncMemoryBroker
from oncekey.queues.taskiq import idempotent_task as idempotent_taskiq_task
from oncekey.testing.faulty_store import SimulatedCrash


def answered(call: Callable[[], Any]) -> Answer:
    """The answer of a call that returns the body's value, or raises."""
    try:
        return Answer("done", call())
    except BaseException as error:
        return answer_of(error)


def answer_of(error: BaseException) -> Answer:
    if isinstance(error, Mismatch):
        return Answer("mismatch", error=error)
    if isinstance(error, OutcomeUnknown):
        return Answer("unknown", error=error)
    if isinstance(error, OperationFailed):
        return Answer("failed", error=error)
    if isinstance(error, OncekeyError):
        return Answer("refused", error=error)
    if isinstance(error, Declined):
        return Answer("raised", error=error)
    if isinstance(error, (SimulatedCrash, Killed)):
        return Answer("died", error=error)
    raise error


class Surface:
    """The base of all surfaces. `wait` runs a coroutine of an async one."""

    operation = "charge"
    scope = ""

    def __init__(self, once: Any, shop: Shop, options: dict[str, Any], rows: Rows | None) -> None:
        self.once = once
        self.shop = shop
        self.options = options
        self.rows = rows
        self.is_async = type(once).__name__ == "AsyncOnce"
        self.set_up()

    def set_up(self) -> None:
        """Guard the body."""

    def call(self, key: str, cents: int) -> Answer:
        raise NotImplementedError

    def finish_abandoned(self) -> None:
        """What happens in the background after a lease has ended."""

    def close(self) -> None:
        """End what the surface has begun."""

    def wait(self, work: Any) -> Any:
        return shared_loop().run(work)


class Function(Surface):
    """A guarded function, or `in_transaction`."""

    def set_up(self) -> None:
        if self.rows is not None:
            return
        guard = self.once.guard(
            "charge", key=lambda key, cents: key, request=lambda key, cents: cents, **self.options
        )
        if self.is_async:

            async def charge(key: str, cents: int) -> Any:
                return self.shop.charge(key, cents)

            self._charge = guard(charge)
        else:
            self._charge = guard(self.shop.charge)

    def call(self, key: str, cents: int) -> Answer:
        if self.rows is None:
            made = self._charge
            return answered(
                lambda: self.wait(made(key, cents)) if self.is_async else made(key, cents)
            )
        if self.is_async:
            return answered(lambda: self.wait(self._in_async_transaction(key, cents)))
        return answered(lambda: self._in_transaction(key, cents))

    def _in_transaction(self, key: str, cents: int) -> Any:
        assert self.rows is not None
        inbox = Inbox(self.once, self.rows.connect, tries=1)

        def body(attempt: Any) -> Any:
            self.shop.count_run(key)
            attempt.connection.execute(INSERT.format(key=key))
            return self.shop.end(key, cents)

        return inbox.run("charge", key, body, request=cents, **self.options).value

    async def _in_async_transaction(self, key: str, cents: int) -> Any:
        assert self.rows is not None
        inbox = AsyncInbox(self.once, self.rows.connect_async, tries=1)

        async def body(attempt: Any) -> Any:
            self.shop.count_run(key)
            await attempt.connection.execute(INSERT.format(key=key))
            return self.shop.end(key, cents)

        return (await inbox.run("charge", key, body, request=cents, **self.options)).value


class RegisteredOperation(Surface):
    """A registered operation; `complete` finishes what was abandoned."""

    def set_up(self) -> None:
        if self.is_async:

            async def charge(attempt: Any, request: Any) -> Any:
                return self.shop.charge(*request)

            self._charge = self.once.operation("charge", **self.options)(charge)
        else:
            made = self.once.operation("charge", **self.options)
            self._charge = made(lambda attempt, request: self.shop.charge(*request))

    def call(self, key: str, cents: int) -> Answer:
        def run() -> Any:
            made = self._charge.run(key, [key, cents])
            return (self.wait(made) if self.is_async else made).value

        return answered(run)

    def finish_abandoned(self) -> None:
        made = self.once.complete()
        if self.is_async:
            self.wait(made)


class QueueConsumer(Surface):
    """A consumer of a MemoryBroker; with an inbox where the crossing is transactional."""

    operation = "shop"
    scope = "shop/orders"

    def set_up(self) -> None:
        settings: dict[str, Any] = {"name": "shop", "key": "json:$.key", **self.options}
        broker = MemoryBroker("orders")
        self._values: dict[str, Any] = {}
        if self.is_async:
            if self.rows is not None:
                settings["inbox"] = AsyncInbox(self.once, self.rows.connect_async, tries=1)
            handler: Any = self._handle_row_async if self.rows else self._handle_async
            self._consumer: Any = AsyncConsumer(
                self.once, handler, AsyncMemoryBroker(broker), **settings
            )
        else:
            if self.rows is not None:
                settings["inbox"] = Inbox(self.once, self.rows.connect, tries=1)
            handler = self._handle_row if self.rows else self._handle
            self._consumer = Consumer(self.once, handler, broker, **settings)

    def _handle(self, message: Message) -> Any:
        return self.shop.charge(*message.json()["request"])

    async def _handle_async(self, message: Message) -> Any:
        return self.shop.charge(*message.json()["request"])

    def _handle_row(self, message: Message, connection: Any) -> Any:
        key, cents = message.json()["request"]
        self.shop.count_run(key)
        connection.execute(INSERT.format(key=key))
        return self.shop.end(key, cents)

    async def _handle_row_async(self, message: Message, connection: Any) -> Any:
        key, cents = message.json()["request"]
        self.shop.count_run(key)
        await connection.execute(INSERT.format(key=key))
        return self.shop.end(key, cents)

    def call(self, key: str, cents: int) -> Answer:
        body = json.dumps({"key": key, "request": [key, cents]}).encode()
        message = Message(body=body, queue="orders", delivery_id=uuid4().hex)
        try:
            made = self._consumer.handle(message)
            disposition = self.wait(made) if self.is_async else made
        except BaseException as error:
            return answer_of(error)
        return self._answer(key, disposition)

    def _answer(self, key: str, disposition: Any) -> Answer:
        """The answer that a disposition stands for. The value of a removed message is stored."""
        said = disposition.dead_letter.error if disposition.dead_letter else disposition.reason
        if disposition.kind is Kind.REMOVE:
            made = self.once.get(self.operation, key, scope=self.scope)
            return Answer("done", (self.wait(made) if self.is_async else made).value)
        if disposition.kind is Kind.PARK:
            return Answer("unknown")
        if disposition.kind is Kind.GIVE_BACK:
            return Answer("refused", error=StoreUnavailable(said))
        if disposition.kind is Kind.DEAD_LETTER:
            return Answer("mismatch" if said.startswith("Mismatch") else "failed", error=None)
        return Answer("raised" if disposition.kind is Kind.RETRY else "died")


class CeleryTask(Surface):
    def set_up(self) -> None:
        app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
        app.finalize()
        self._app = app
        task = app.task(name=f"charge-{uuid4().hex}", shared=False)(self._charge_card)
        guard = idempotent_task(
            self.once,
            key=lambda key, cents: key,
            operation=self.operation,
            **self.options,
        )
        self._task: Any = guard(task)

    def _charge_card(self, key: str, cents: int) -> Any:
        return self.shop.charge(key, cents)

    def call(self, key: str, cents: int) -> Answer:
        return answered(lambda: self._task(key, cents))

    def close(self) -> None:
        self._app.close()


class DramatiqActor(Surface):
    def set_up(self) -> None:
        def charge(key: str, cents: int) -> Any:
            return self.shop.charge(key, cents)

        actor = dramatiq.actor(actor_name="charge", broker=StubBroker())(charge)
        self._actor = idempotent_actor(self.once, key=lambda key, cents: key, **self.options)(actor)

    def call(self, key: str, cents: int) -> Answer:
        return answered(lambda: self._actor.fn(key, cents))


class TaskiqTask(Surface):
    def set_up(self) -> None:
        async def charge(key: str, cents: int) -> Any:
            return self.shop.charge(key, cents)

        task = InMemoryBroker().task(task_name="charge")(charge)
        guard = idempotent_taskiq_task(self.once, key=lambda key, cents: key, **self.options)
        self._task: Any = guard(task)

    def call(self, key: str, cents: int) -> Answer:
        return answered(lambda: self.wait(self._task.original_func(key, cents)))


class FastStreamHandler(Surface):
    """A FastStream subscriber, delivered to by FastStream's own test broker."""

    operation = "shop"
    scope = "shop/orders"

    def set_up(self) -> None:
        self._ended: Any = None
        guard = IdempotencyMiddleware(
            self.once,
            name="shop",
            key="json:$.key",
            hold_max="0s",
            dead_letter=self._dead_letter,
            **self.options,
        )
        self._guard = guard
        self._broker: Any = RabbitBroker(middlewares=[guard])

        @self._broker.subscriber("orders", ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def charge(order: dict[str, Any]) -> Any:
            return self.shop.charge(*order["request"])

    async def _dead_letter(self, message: Any, disposition: Any) -> None:
        self._ended = disposition

    def call(self, key: str, cents: int) -> Answer:
        self._ended = None
        return answered(lambda: self.wait(self._deliver(key, cents)))

    async def _deliver(self, key: str, cents: int) -> Any:
        # What FastStream swallows, the guard is asked for first.
        await self._guard.plan_for(self._broker.subscribers[0], "orders")
        seen: list[BaseException] = []
        run = self.once.run

        async def noting(*args: Any, **kwargs: Any) -> Any:
            try:
                return await run(*args, **kwargs)
            except BaseException as error:
                seen.append(error)
                raise

        self.once.run = noting
        try:
            async with TestRabbitBroker(self._broker):
                order: Any = {"key": key, "request": [key, cents]}
                response = await self._broker.request(order, "orders", timeout=60)
                value = await response.decode()
        finally:
            del self.once.run
        if seen:
            raise seen[0]
        return value
