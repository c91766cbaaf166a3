"""A message that ends its consumers becomes a dead letter; those claimed beside it do not."""

from __future__ import annotations

import pytest

from oncekey import Once
from oncekey.core.commands import Claimed, SaveStep
from oncekey.queues.blocking.message_handler import MessageHandler
from oncekey.queues.consumer_settings import BrokerFacts, ConsumerPlan, ConsumerSettings, plan_of
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.handler_call import MARKS_MAX, HandlerCall
from oncekey.queues.queue_message import Message
from oncekey.queues.work_in_hand import Entry
from oncekey.stores.memory import MemoryStore

LEASE_US = 30_000_000
MAX_TRIES = 3
MESSAGE = Message(b'{"id": 1}', "orders")


class DeadConsumers:
    """A key that consumers have claimed and died with, on a store whose clock the test moves."""

    def __init__(self, max_tries: int = MAX_TRIES) -> None:
        self.now = 1_000_000_000
        self.store = MemoryStore(clock=lambda: self.now)
        self.once = Once(self.store)
        self.calls = 0
        self.error: Exception | None = None
        settings = ConsumerSettings(
            name="shipping", key="json:$.id", max_tries=max_tries, options={"retry_safe": True}
        )
        self.plan: ConsumerPlan = plan_of(
            settings, BrokerFacts("orders"), self.once, "shipping/orders"
        )
        call = HandlerCall(self._handle, is_async=False, in_transaction=False)
        self.handler = MessageHandler(self.once, call, self.plan)

    def _handle(self, message: Message) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    def die(self, *, begun: bool) -> None:
        """A consumer claims the key, perhaps begins its try, and is never heard of again."""
        plan = self.plan
        job = self.once._jobs.make(
            "shipping", "1", plan.scope, MESSAGE.body, None, plan.options, plan.origin
        )
        (claimed,) = self.store.apply([job.claim])
        assert isinstance(claimed, Claimed)
        if begun and (claimed.attempt > 1 or plan.settings.max_tries == 1):
            name = f"try:{claimed.attempt}"
            step = SaveStep(job.claim.id, job.claim.owner, claimed.fence, name, False, b"")
            self.store.apply([step])
        self.now += LEASE_US + 1

    def handle(self, message: Message = MESSAGE) -> Disposition:
        return self.handler.handle(Entry(message, 0.0))


def test_a_message_that_was_claimed_beside_a_poisoned_one_still_runs() -> None:
    case = DeadConsumers()
    for _ in range(5 * MAX_TRIES):
        case.die(begun=False)
    assert case.handle().kind is Kind.REMOVE
    assert case.calls == 1


def test_a_message_that_ended_its_consumers_too_often_does_not_run_again() -> None:
    case = DeadConsumers()
    for _ in range(MAX_TRIES):
        case.die(begun=True)
    ended = case.handle()
    assert ended.kind is Kind.DEAD_LETTER
    assert ended.dead_letter is not None
    assert "may be what ends its consumers" in ended.dead_letter.error
    assert ended.dead_letter.fence > 0, "it is stored, so it can be redriven"
    assert case.calls == 0


def test_the_last_try_that_is_allowed_runs() -> None:
    case = DeadConsumers()
    for _ in range(MAX_TRIES - 1):
        case.die(begun=True)
    assert case.handle().kind is Kind.REMOVE
    assert case.calls == 1


def test_tries_of_an_earlier_generation_do_not_count_after_a_redrive() -> None:
    case = DeadConsumers()
    for _ in range(MAX_TRIES):
        case.die(begun=True)
    letter = case.handle().dead_letter
    assert letter is not None
    redriven = Message(
        MESSAGE.body,
        "orders",
        {"oncekey-fence": str(letter.fence), "oncekey-tries": str(letter.tries)},
    )
    assert case.handler.handle(Entry(redriven, 0.0)).kind is Kind.REMOVE
    assert case.calls == 1


def test_a_single_try_is_not_used_up_by_a_claim_whose_handler_never_began() -> None:
    """Given back by a stop, or lost with a consumer, while it waited for a free handler."""
    case = DeadConsumers(max_tries=1)
    case.die(begun=False)
    assert case.handle().kind is Kind.REMOVE
    assert case.calls == 1


def test_a_single_try_that_ended_its_consumer_is_the_only_one() -> None:
    case = DeadConsumers(max_tries=1)
    case.die(begun=True)
    assert case.handle().kind is Kind.DEAD_LETTER
    assert case.calls == 0


def test_a_single_try_marks_its_beginning() -> None:
    case = DeadConsumers(max_tries=1)
    case.error = KeyError("gone")
    assert case.handle().kind is Kind.DEAD_LETTER
    (record,) = case.store._records.values()
    assert [step.name for step in record.steps] == ["try:1"]


@pytest.mark.parametrize("max_tries", [MARKS_MAX + 1, MARKS_MAX + 2, 150])
def test_more_tries_than_an_operation_has_steps_are_all_made(max_tries: int) -> None:
    """The steps of the handler itself need room too."""
    case = DeadConsumers(max_tries=max_tries)
    case.error = ValueError("not yet")
    for _ in range(max_tries - 1):
        assert case.handle().kind is Kind.RETRY
    letter = case.handle().dead_letter
    assert letter is not None
    assert letter.error.startswith(f"TooManyTries: failed {max_tries} times")
    assert case.calls == letter.tries == max_tries
    marks = {"oncekey-fence": str(letter.fence), "oncekey-tries": str(letter.tries)}
    redriven = Message(MESSAGE.body, "orders", marks)
    for _ in range(max_tries - 1):
        assert case.handle(redriven).kind is Kind.RETRY
    assert case.handle(redriven).kind is Kind.DEAD_LETTER
    assert case.calls == 2 * max_tries
