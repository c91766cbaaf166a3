"""The scenarios, one function each: it tells what it does, does it over HTTP, and returns a Scene.

None sleeps to be right: they go on when the provider's books say so, or when an answer's
Retry-After does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress

import httpx

from oncekey.demo.cards import Card
from oncekey.demo.provider.books import Counts
from oncekey.demo.scenarios.client import CENTS, Reply, persist, until
from oncekey.demo.scenarios.scenario import Played, Scenario, Set
from oncekey.demo.scene import Answer, Got

DUPLICATES = 20
CLIENT_PATIENCE_SECONDS = 0.5


async def _lost_answer(on: Set, key: str) -> Played:
    on.tell("sending a charge")
    first = asyncio.create_task(on.client.charge(key))
    await until(lambda: on.books.counts(key).acted > 0, "the provider has acted", first)
    on.tell("the connection breaks before the answer")
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    lost = Answer("click 1", Got.LOST, "cut off")
    second = await persist("click 2", lambda: on.client.charge(key), on.tell)
    again = await persist("click 3", lambda: on.client.charge(key), on.tell)
    return (lost, *second, *again), ()


async def _at_once(on: Set, key: str) -> Played:
    on.tell(f"sending the same charge {DUPLICATES} times at once")
    all_answers = await asyncio.gather(
        *(persist("", lambda: on.client.charge(key), on.tell) for _ in range(DUPLICATES))
    )
    last = Counter(answers[-1].got for answers in all_answers)
    waited = sum(len(answers) > 1 for answers in all_answers)
    receipts = {answers[-1].receipt for answers in all_answers}
    receipt = next(iter(receipts))
    answers = tuple(
        Answer(
            f"{last[got]} of {DUPLICATES}",
            got,
            f"201, {waited} after a 409" if got is Got.REPLAYED else "201",
            receipt,
        )
        for got in sorted(last, key=lambda got: last[got])
    )
    problems = () if len(receipts) == 1 else ("callers got different answers",)
    if last[Got.RAN] != 1:
        problems = (*problems, f"{last[Got.RAN]} of them ran")
    return answers, problems


async def _other_amount(on: Set, key: str) -> Played:
    on.tell("sending 49.00")
    first = asyncio.create_task(on.client.charge(key))
    await until(lambda: on.books.counts(key).asked > 0, "the provider was asked", first)
    on.tell("sending 1.00 with the same key")
    during = await on.client.charge(key, cents=100)
    done = await first
    after = await on.client.charge(key, cents=100)
    same = await on.client.charge(key)
    return (
        done.answer("49.00"),
        during.answer("1.00", "while it runs"),
        after.answer("1.00", "after it"),
        same.answer("49.00"),
    ), ()


async def _flaky(on: Set, key: str) -> Played:
    answers = []
    for who in ("first", "retry", "retry", "again"):
        on.tell(f"sending a charge to a flaky provider: {who}")
        reply = await on.client.charge(key, card=Card.FLAKY)
        note = str(reply.body.get("detail", "")).partition(";")[0]
        answers.append(reply.answer(who, note))
    return tuple(answers), ()


async def _slow(on: Set, key: str) -> Played:
    on.tell(f"sending a charge, with {CLIENT_PATIENCE_SECONDS:g} s of patience")
    gave_up = Answer("first", Got.GAVE_UP, f"after {CLIENT_PATIENCE_SECONDS:g} s")
    with suppress(httpx.TimeoutException):
        reply = await on.client.charge(key, card=Card.SLOW, patience=CLIENT_PATIENCE_SECONDS)
        gave_up = reply.answer("first")
    retry = await persist("retry", lambda: on.client.charge(key, card=Card.SLOW), on.tell)
    return (gave_up, *retry), ()


async def _killed(on: Set, key: str) -> Played:
    on.tell("starting a worker process")
    worker = await on.crew.start()
    try:
        on.tell(f"sending a charge to worker {worker.pid}")
        first = asyncio.create_task(on.client.charge(key, card=Card.STUCK, url=worker.url))
        await until(lambda: on.books.counts(key).acted > 0, "the provider has acted", first)
        on.tell(f"the card is charged: killing worker {worker.pid}")
    finally:
        await worker.kill()
    killed = Answer("first", Got.KILLED, f"process {worker.pid}")
    with suppress(httpx.TransportError):
        killed = (await first).answer("first")

    async def retry() -> Reply:
        return await on.client.charge(key, card=Card.STUCK)

    later = await persist("retry", retry, on.tell, "took over")
    again = await retry()
    return (killed, *later, again.answer("again")), ()


async def _declined(on: Set, key: str) -> Played:
    on.tell("sending a charge to a card without money")
    first = await on.client.charge(key, card=Card.DECLINED)
    retry = await on.client.charge(key, card=Card.DECLINED)
    return (first.answer("first"), retry.answer("retry")), ()


async def _refund(on: Set, key: str) -> Played:
    on.tell("sending a refund twice")
    charge = await on.client.charge(key)
    refund = f"{key}-refund"

    def click() -> Awaitable[Reply]:
        return on.client.refund(str(charge.body["id"]), refund, CENTS)

    once, twice = await asyncio.gather(
        persist("click", click, on.tell), persist("click", click, on.tell)
    )
    # Which click came first does not matter.
    answers = sorted((*once, *twice), key=lambda answer: answer.got is Got.REPLAYED)
    return tuple(answers), ()


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "lost-answer",
        "A lost answer, and a second click",
        "The card is charged, but the connection breaks before the answer. The client sends the "
        "same request again, twice.",
        _lost_answer,
        (Got.LOST, Got.REPLAYED, Got.REPLAYED),
    ),
    Scenario(
        "at-once",
        f"{DUPLICATES} duplicates at once",
        f"A broken retry loop sends the same charge {DUPLICATES} times in the same moment. One "
        "runs; the others are told to wait, and then get its answer.",
        _at_once,
        (Got.RAN, Got.REPLAYED),
    ),
    Scenario(
        "other-amount",
        "Same key, another amount",
        "A client bug reuses the key of a 49.00 charge for 1.00: once while that charge runs, "
        "once after it.",
        _other_amount,
        (Got.RAN, Got.MISMATCH, Got.MISMATCH, Got.REPLAYED),
    ),
    Scenario(
        "flaky",
        "A flaky provider",
        "The provider refuses the first try, and breaks after it has charged the card in the "
        "second. The third is given that charge, for it has the same child key.",
        _flaky,
        (Got.FAILED, Got.FAILED, Got.RAN, Got.REPLAYED),
        Counts(asked=3),
    ),
    Scenario(
        "impatient",
        "A client less patient than the handler",
        "The provider takes two seconds, the client gives up after half of one. The handler "
        "carries on, and its answer waits for the retry.",
        _slow,
        (Got.GAVE_UP, Got.REPLAYED),
    ),
    Scenario(
        "killed",
        "A worker is killed",
        "A worker process charges the card and is killed (SIGKILL) before it can store that. "
        "When its lease is over, the retry takes over with the same child key.",
        _killed,
        (Got.KILLED, Got.RAN, Got.REPLAYED),
        Counts(asked=2),
    ),
    Scenario(
        "declined",
        "A declined card",
        "The provider declines the card for good. The client tries again all the same, and the "
        "card is not tried a second time.",
        _declined,
        (Got.DECLINED, Got.REPLAYED),
    ),
    Scenario(
        "refund",
        "A refund, clicked twice",
        "Two clicks send the same refund at the same time. The money goes back once.",
        _refund,
        (Got.RAN, Got.REPLAYED),
        kind="refund",
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
