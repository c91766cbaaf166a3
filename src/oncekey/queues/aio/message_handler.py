"""Handles one message at a time, in the caller's task: drives delivery_flow.py over `AsyncOnce`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from oncekey.core.commands import Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.keys.key_status import status_of
from oncekey.engine.port import AsyncPort
from oncekey.queues.claimed_delivery import ClaimBatch, ClaimedDelivery
from oncekey.queues.consumer_settings import ConsumerPlan
from oncekey.queues.delivery_flow import (
    DeliveryEffect,
    FreeKey,
    LookAtKey,
    RunHandler,
    delivery,
)
from oncekey.queues.disposition import Disposition, describe
from oncekey.queues.disposition_report import report
from oncekey.queues.handler_call import HandlerCall, result_of
from oncekey.queues.work_in_hand import Entry

AsyncSlot = Callable[[], AbstractAsyncContextManager[object]]


class AsyncMessageHandler:
    """Runs the handler of a consumer for single messages: see `MessageHandler`."""

    def __init__(
        self,
        once: AsyncOnce,
        call: HandlerCall,
        plan: ConsumerPlan,
        *,
        run: Callable[..., Awaitable[Any]] | None = None,
        slot: AsyncSlot = nullcontext,
    ) -> None:
        self._once = once
        self._port = AsyncPort(once)
        self._call = call
        self.plan = plan
        self._run = run
        self._slot = slot

    async def claim_all(self, entries: Sequence[Entry]) -> None:
        """Claim the keys of several messages in one batch; each of them must then be handled."""
        batch = ClaimBatch(self._port, self.plan, entries)
        batch.claimed(await self._port.claim_many(batch.jobs))

    async def handle(self, entry: Entry) -> Disposition:
        """What becomes of the message, once its outcome is durable."""
        claimed, entry.claimed = entry.claimed, None
        result: object = None
        if isinstance(claimed, ClaimedDelivery):
            flow = claimed.flow
            try:
                body = self._body(claimed.effect, entry)
                await self._port.run(claimed.job, body, claimed.sent)
            except Exception as error:
                result = result_of(error, entry)
        else:
            flow = delivery(entry.message, self.plan)
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                disposition: Disposition = stop.value
                report(self._once, self.plan, entry.message, disposition)
                return disposition
            try:
                result = await self._perform(effect, entry)
            except Exception as error:
                result = result_of(error, entry)

    async def check_store(self) -> bool:
        """True if the store answers. Then it gets the outcomes first that it did not take: messages
        whose handlers were done would else find their keys unknown, and be parked."""
        try:
            await self._look("store check")
        except StoreUnavailable:
            return False
        await self._port.flush()
        return True

    async def _perform(self, effect: DeliveryEffect, entry: Entry) -> object:
        if isinstance(effect, LookAtKey):
            try:
                return await self._look(effect.key)
            except StoreUnavailable as error:
                return error
            except Exception as error:  # a store's own error: nothing is known of the key
                return StoreUnavailable(describe(error))
        if isinstance(effect, FreeKey):
            status = status_of(effect.seen, self._port.codec)
            assert status is not None
            by = f"consumer {self.plan.settings.name}"
            await self._once.release(status, by=by, why=effect.why)
            return None
        await self._run_handler(effect, entry)
        return None

    async def _look(self, key: str) -> Seen:
        seen, _ = await self._port.look(self.plan.settings.name, key, self.plan.scope)
        return seen

    def _body(self, effect: RunHandler, entry: Entry) -> Callable[[AsyncAttempt], Any]:
        plan, call = self.plan, self._call

        async def body(attempt: AsyncAttempt) -> Any:
            tries = call.begin(entry, attempt, effect.tries_before, plan)
            async with self._slot():
                attempt.check()  # it may have waited for its slot longer than its lease
                mark = call.mark_of(attempt, tries, plan)
                if mark is not None:
                    await attempt.step(mark, lambda key: None)
                try:
                    return await call(entry.message, attempt)
                except Exception as error:
                    entry.raised = last = call.error(error, tries, plan)
                    if last is error:
                        raise
                    raise last from error

        return body

    async def _run_handler(self, effect: RunHandler, entry: Entry) -> None:
        plan = self.plan
        entry.key = effect.key
        run = self._run or self._once.run
        await run(
            plan.settings.name,
            effect.key,
            self._body(effect, entry),
            scope=plan.scope,
            request=effect.request,
            origin=plan.origin,
            **plan.options,
        )
