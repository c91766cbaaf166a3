"""A message that ends its consumers becomes a dead letter; those claimed beside it do not."""

from __future__ import annotations

import pytest

from oncekey import InFlight, Mismatch, Once, OutcomeUnknown, StoreUnavailable
from oncekey.core.commands import Claimed, SaveStep
from oncekey.queues.blocking.message_handler import MessageHandler
from oncekey.queues.consumer_settings import BrokerFacts, ConsumerPlan, ConsumerSettings, plan_of
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.handler_call import HandlerCall
from oncekey.queues.queue_message import Message
from oncekey.queues.work_in_hand import Entry
from oncekey.stores.memory import MemoryStore

LEASE_US = 30_000_000
MAX_TRIES = 3
MESSAGE = Message(b'{"id": 1}', "orders")


class DeadConsumers:
    """A key that consumers have claimed and died with, on a store whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.store = MemoryStore(clock=lambda: self.now)
        self.once = Once(self.store)
        self.calls = 0
        self.error: Exception | None = None
        settings = ConsumerSettings(
            name="shipping", key="json:$.id", max_tries=MAX_TRIES, options={"retry_safe": True}
        )
        self.plan: ConsumerPlan = plan_of(settings, BrokerFacts("orders"), self.once.policy)
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
        if begun and claimed.attempt > 1:
            name = f"try:{claimed.attempt}"
            step = SaveStep(job.claim.id, job.claim.owner, claimed.fence, name, False, b"")
            self.store.apply([step])
        self.now += LEASE_US + 1

    def handle(self) -> Disposition:
        return self.handler.handle(Entry(MESSAGE, 0.0))


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


@pytest.mark.parametrize(
    "error",
    [
        InFlight("of another operation", retry_after=60),
        OutcomeUnknown("of another operation"),
        StoreUnavailable("another store"),
        Mismatch("of another operation"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_an_operation_within_the_handler_is_a_failed_try(error: Exception) -> None:
    """It says nothing about the message's own key, which is free again."""
    case = DeadConsumers()
    case.error = error
    assert case.handle().kind is Kind.RETRY
    case.error = None
    assert case.handle().kind is Kind.REMOVE
