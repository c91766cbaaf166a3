"""The scenarios, one function each: it plays the scenario over HTTP, or through a queue, and
returns what callers got.

None sleeps to be right: they go on when the provider's ledger shows what they wait for, or when a
response's Retry-After says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import httpx

from oncekey.demo.cards import Card
from oncekey.demo.handlers import Handler
from oncekey.demo.provider.ledger import Counts, Kind
from oncekey.demo.scenario_result import CallerResult, ResponseKind
from oncekey.demo.scenarios.scenario import Played, Scenario, ScenarioTools
from oncekey.demo.scenarios.scenario_client import CENTS, OnProgress, Reply, persist, until
from oncekey.demo.shipping.sqlite_queue import OrderQueue

DUPLICATES = 20
CLIENT_TIMEOUT_SECONDS = 0.5
_T = TypeVar("_T")


async def _meet(
    tools: ScenarioTools,
    order: str,
    send: Callable[[OnProgress], Awaitable[_T]],
    kind: Kind = "charge",
) -> _T:
    """Send a duplicate while the provider keeps the first request waiting, and let the provider
    answer when the two have met: the duplicate was told to wait, or was answered, or has reached
    the provider as well."""
    was_told = asyncio.Event()

    def on_progress(text: str) -> None:
        was_told.set()
        tools.on_progress(text)

    sending = asyncio.ensure_future(send(on_progress))

    def have_met() -> bool:
        if was_told.is_set() or sending.done():
            return True
        return tools.ledger.counts(order, kind).acted > 1

    try:
        await until(have_met, "the duplicate has come")
    finally:
        await asyncio.to_thread(tools.ledger.let_go, order)
    return await sending


async def _lost_answer(tools: ScenarioTools, key: str) -> Played:
    tools.on_progress("sending a charge")
    await asyncio.to_thread(tools.ledger.hold, key)
    first = asyncio.create_task(tools.client.charge(key, card=Card.SLOW))
    await until(lambda: tools.ledger.counts(key).acted > 0, "the provider has acted", first)
    tools.on_progress("the connection breaks before the answer")
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    lost = CallerResult("click 1", ResponseKind.LOST, "cut off")

    def click() -> Awaitable[Reply]:
        return tools.client.charge(key, card=Card.SLOW)

    second = await _meet(tools, key, lambda told: persist("click 2", click, told))
    again = await persist("click 3", click, tools.on_progress)
    return (lost, *second, *again), ()


async def _at_once(tools: ScenarioTools, key: str) -> Played:
    tools.on_progress(f"sending the same charge {DUPLICATES} times at once")
    await asyncio.to_thread(tools.ledger.hold, key)
    all_answers = await _meet(
        tools,
        key,
        lambda told: asyncio.gather(
            *(persist("", lambda: tools.client.charge(key), told) for _ in range(DUPLICATES))
        ),
    )
    last = Counter(answers[-1].got for answers in all_answers)
    waited = sum(len(answers) > 1 for answers in all_answers)
    receipts = {answers[-1].receipt for answers in all_answers}
    receipt = next(iter(receipts)) if len(receipts) == 1 else None
    ran_note = "" if receipt else f", {len(receipts)} different receipts"
    answers = tuple(
        CallerResult(
            f"{last[got]} of {DUPLICATES}",
            got,
            f"201, {waited} after a 409" if got is ResponseKind.REPLAYED else f"201{ran_note}",
            receipt,
        )
        for got in sorted(last, key=lambda got: last[got])
    )
    problems = () if len(receipts) == 1 else ("callers got different answers",)
    if last[ResponseKind.RAN] != 1:
        problems = (*problems, f"{last[ResponseKind.RAN]} of them ran")
    return answers, problems


async def _other_amount(tools: ScenarioTools, key: str) -> Played:
    tools.on_progress("sending 49.00")
    await asyncio.to_thread(tools.ledger.hold, key)
    first = asyncio.create_task(tools.client.charge(key, card=Card.SLOW))
    await until(lambda: tools.ledger.counts(key).asked > 0, "the provider was asked", first)
    tools.on_progress("sending 1.00 with the same key")
    during = await _meet(tools, key, lambda _: tools.client.charge(key, cents=100, card=Card.SLOW))
    done = await first
    after = await tools.client.charge(key, cents=100, card=Card.SLOW)
    same = await tools.client.charge(key, card=Card.SLOW)
    return (
        done.as_result("49.00"),
        during.as_result("1.00", "while it runs"),
        after.as_result("1.00", "after it"),
        same.as_result("49.00"),
    ), ()


async def _flaky(tools: ScenarioTools, key: str) -> Played:
    answers = []
    for who in ("first", "retry", "retry", "again"):
        tools.on_progress(f"sending a charge to a flaky provider: {who}")
        reply = await tools.client.charge(key, card=Card.FLAKY)
        note = str(reply.body.get("detail", "")).partition(";")[0]
        answers.append(reply.as_result(who, note))
    return tuple(answers), ()


async def _slow(tools: ScenarioTools, key: str) -> Played:
    tools.on_progress(f"sending a charge, with {CLIENT_TIMEOUT_SECONDS:g} s of patience")
    await asyncio.to_thread(tools.ledger.hold, key)
    first = asyncio.create_task(tools.client.charge(key, card=Card.SLOW))
    # Its patience begins here. On a busy machine it could be over before the API has the request.
    await until(lambda: tools.ledger.counts(key).acted > 0, "the provider has acted", first)
    gave_up = CallerResult("first", ResponseKind.GAVE_UP, f"after {CLIENT_TIMEOUT_SECONDS:g} s")
    with suppress(TimeoutError):
        async with asyncio.timeout(CLIENT_TIMEOUT_SECONDS):
            reply = await first
        gave_up = reply.as_result("first")

    def charge() -> Awaitable[Reply]:
        return tools.client.charge(key, card=Card.SLOW)

    retry = await _meet(tools, key, lambda told: persist("retry", charge, told))
    return (gave_up, *retry), ()


async def _killed(tools: ScenarioTools, key: str) -> Played:
    tools.on_progress("starting a worker process")
    worker = await tools.workers.start()
    try:
        tools.on_progress(f"sending a charge to worker {worker.pid}")
        first = asyncio.create_task(tools.client.charge(key, card=Card.STUCK, url=worker.url))
        await until(lambda: tools.ledger.counts(key).acted > 0, "the provider has acted", first)
        tools.on_progress(f"the card is charged: killing worker {worker.pid}")
    finally:
        await worker.kill()
    killed = CallerResult("first", ResponseKind.KILLED, f"process {worker.pid}")
    with suppress(httpx.TransportError):
        killed = (await first).as_result("first")

    async def retry() -> Reply:
        return await tools.client.charge(key, card=Card.STUCK)

    note = "took over" if tools.client.handler is Handler.GUARDED else ""
    later = await persist("retry", retry, tools.on_progress, note)
    again = await retry()
    return (killed, *later, again.as_result("again")), ()


async def _declined(tools: ScenarioTools, key: str) -> Played:
    tools.on_progress("sending a charge to a card without money")
    first = await tools.client.charge(key, card=Card.DECLINED)
    retry = await tools.client.charge(key, card=Card.DECLINED)
    return (first.as_result("first"), retry.as_result("retry")), ()


async def _refund(tools: ScenarioTools, key: str) -> Played:
    tools.on_progress("sending a refund twice")
    charge = await tools.client.charge(key)
    refund = f"{key}-refund"

    def click() -> Awaitable[Reply]:
        return tools.client.refund(str(charge.body["id"]), refund, CENTS)

    await asyncio.to_thread(tools.ledger.hold, key)
    once, twice = await _meet(
        tools,
        key,
        lambda told: asyncio.gather(persist("click", click, told), persist("click", click, told)),
        "refund",
    )
    # Which click came first does not matter.
    answers = sorted((*once, *twice), key=lambda answer: answer.got is ResponseKind.REPLAYED)
    return tuple(answers), ()


async def _redelivered(tools: ScenarioTools, key: str) -> Played:
    queue = await asyncio.to_thread(OrderQueue, tools.queues, key)
    order = {"order": key, "card": Card.STUCK}
    handler = tools.client.handler
    await asyncio.to_thread(queue.send, order)
    tools.on_progress("starting a consumer process")
    consumer = await tools.workers.start_consumer(queue.name, handler)
    ended = asyncio.create_task(consumer.next_ended())
    try:
        await until(lambda: _has_shipped(tools, key), "the order is shipped", ended)
        tools.on_progress(f"the order is shipped: killing consumer {consumer.pid}")
    finally:
        await consumer.kill()
        await asyncio.gather(ended, return_exceptions=True)
    answers = [CallerResult("delivery 1", ResponseKind.KILLED, f"process {consumer.pid}")]
    tools.on_progress("another consumer waits until the message is delivered again")
    consumer = await tools.workers.start_consumer(queue.name, handler)
    try:
        while (delivery := await consumer.next_ended()).got == ResponseKind.IN_FLIGHT:
            answers.append(CallerResult("delivery 2", ResponseKind.IN_FLIGHT, "left in the queue"))
        note = "took over" if handler is Handler.GUARDED else ""
        answers.append(CallerResult("delivery 2", ResponseKind(delivery.got), note))
        tools.on_progress("sending the same order in another message")
        await asyncio.to_thread(queue.send, order)
        duplicate = await consumer.next_ended()
    finally:
        await consumer.kill()
    answers.append(CallerResult("duplicate", ResponseKind(duplicate.got), "removed"))
    left = await asyncio.to_thread(queue.__len__)
    return tuple(answers), (f"{left} messages are left in the queue",) if left else ()


def _has_shipped(tools: ScenarioTools, key: str) -> bool:
    return tools.ledger.counts(key, "shipment").acted > 0


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "lost-answer",
        "A lost answer, and a second click",
        "The card is charged, but the connection breaks before the answer. The client sends the "
        "same request again, twice.",
        "The handler carries on. The second click waits for it and is given its answer.",
        "The first click has stored nothing yet, so the second one charges the card again.",
        _lost_answer,
        (ResponseKind.LOST, ResponseKind.REPLAYED, ResponseKind.REPLAYED),
    ),
    Scenario(
        "at-once",
        f"{DUPLICATES} duplicates at once",
        f"A broken retry loop sends the same charge {DUPLICATES} times in the same moment.",
        "One claims the key and runs; the others are told to wait, and then get its answer.",
        "They all look the key up before any of them has stored it. They all find nothing.",
        _at_once,
        (ResponseKind.RAN, ResponseKind.REPLAYED),
    ),
    Scenario(
        "other-amount",
        "Same key, another amount",
        "A client bug reuses the key of a 49.00 charge for 1.00: once while that charge runs, "
        "once after it.",
        "Another request under a known key is refused, also while the first one runs.",
        "It runs as well; and later the client is told that 1.00 was paid with 49.00.",
        _other_amount,
        (ResponseKind.RAN, ResponseKind.MISMATCH, ResponseKind.MISMATCH, ResponseKind.REPLAYED),
    ),
    Scenario(
        "flaky",
        "A flaky provider",
        "The provider refuses the first try, and breaks after it has charged the card in the "
        "second. The client tries a third time.",
        "The third try has the same child key, so the provider gives it the charge of the second.",
        "The provider is asked anew each time, and cannot know that it is the same charge.",
        _flaky,
        (ResponseKind.FAILED, ResponseKind.FAILED, ResponseKind.RAN, ResponseKind.REPLAYED),
        Counts(asked=3),
    ),
    Scenario(
        "impatient",
        "A client less patient than the handler",
        "The provider takes two seconds. After half of one the client gives up, and tries again.",
        "The handler carries on, and its answer waits for the retry.",
        "The retry finds no stored answer, because the first request still runs.",
        _slow,
        (ResponseKind.GAVE_UP, ResponseKind.REPLAYED),
    ),
    Scenario(
        "killed",
        "A worker is killed",
        "A worker process charges the card and is killed (SIGKILL) before it can store that.",
        "When its lease is over, the retry takes over with the same child key.",
        "Nothing says that the card was charged, so the retry charges it.",
        _killed,
        (ResponseKind.KILLED, ResponseKind.RAN, ResponseKind.REPLAYED),
        Counts(asked=2),
    ),
    Scenario(
        "declined",
        "A declined card",
        "The provider declines the card for good. The client tries again all the same.",
        "The refusal is stored, and the card is not tried a second time.",
        "The refusal is not stored, and the card is tried again. No money moves either way.",
        _declined,
        (ResponseKind.DECLINED, ResponseKind.REPLAYED),
        Counts(acted=0, declined=1),
    ),
    Scenario(
        "refund",
        "A refund, clicked twice",
        "Two clicks send the same refund at the same time.",
        "One claims the key. The money goes back once.",
        "Both find that nothing was given back yet, and both give it back.",
        _refund,
        (ResponseKind.RAN, ResponseKind.REPLAYED),
        kind="refund",
    ),
    Scenario(
        "redelivered",
        "A message, delivered again",
        "A consumer takes an order from a queue, ships it, and is killed (SIGKILL) before it can "
        "remove the message. The queue delivers it again, and later a duplicate.",
        "When its lease is over, the next consumer takes over with the same child key. The "
        "duplicate is removed without being run.",
        "Nothing says that the order was shipped, so the second delivery ships it again.",
        _redelivered,
        (ResponseKind.KILLED, ResponseKind.RAN, ResponseKind.REPLAYED),
        Counts(asked=2),
        kind="shipment",
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
