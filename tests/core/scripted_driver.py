"""A driver for tests: the test reads each effect of a flow and sends its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from tests.core.sample_records import FENCE, FINGERPRINT, ID, ME

from oncekey.core.attempt_flow import attempt
from oncekey.core.commands import Claim, Claimed, Command, Reply
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    Effect,
    Grant,
    Sleep,
    command_of,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.policy import STORE_TIMEOUT_DEFAULT_US, PolicyTimes

C = TypeVar("C")

SECOND = 1_000_000
LEASE = 30 * SECOND
KEEP = 3_600 * SECOND
MAYBE = StoreUnavailable("no answer", ambiguous=True)
REFUSED = StoreUnavailable("no connection", ambiguous=False)


def claim(*, retry_safe: bool = False) -> Claim:
    return Claim(ID, ME, FINGERPRINT, LEASE, KEEP, 0, retry_safe, "acct", "charge", "")


def my_attempt(
    *,
    wait: int = 0,
    retry_safe: bool = False,
    recoverable: bool = False,
    store_timeout: int = STORE_TIMEOUT_DEFAULT_US,
    arguments: bytes = b"",
) -> Generator[Effect, Any, AttemptOutcome]:
    """ME's attempt."""
    times = PolicyTimes(LEASE, KEEP, 0, wait, retry_safe, store_timeout=store_timeout)
    return attempt(claim(retry_safe=retry_safe), times, recoverable, arguments)


def grant(*, retry_safe: bool = False, lease: int = LEASE, deadline: int = LEASE) -> Grant:
    """ME's grant, sent at 0."""
    return Grant(claim(retry_safe=retry_safe)._replace(lease=lease), FENCE, 1, deadline)


def running(**times: Any) -> FlowDriver:
    """The second attempt on a key, whose body is about to run."""
    driver = FlowDriver(my_attempt(**times))
    driver.reply(Claimed(FENCE, 2, ()))
    assert driver.grant().fence == FENCE
    return driver


class FlowDriver:
    """A flow, the effect it waits for, and the caller's clock."""

    def __init__(self, flow: Generator[Effect, object, Any]) -> None:
        self._flow = flow
        self.now = 0
        self.ended = False
        self.result: Any = None
        self.effect: Effect | None = None
        self.send(None)

    def send(self, result: object) -> None:
        assert not self.ended
        try:
            self.effect = self._flow.send(result)
        except StopIteration as stop:
            self.effect, self.ended, self.result = None, True, stop.value

    def expect(self, kind: type[C]) -> C:
        assert isinstance(self.effect, kind), f"it yields {self.effect}"
        return self.effect

    def command(self, kind: type[C]) -> C:
        """The command that it yields."""
        command = self._command()
        assert isinstance(command, kind), f"sends {command}"
        return command

    def reply(self, reply: Reply | StoreUnavailable, *, took: int = 0) -> None:
        self._command()
        sent_at, self.now = self.now, self.now + took
        self.send(CommandResult(reply, sent_at, self.now))

    def _command(self) -> Command:
        command = command_of(self.effect)
        assert command is not None, f"it yields {self.effect}"
        return command

    def sleep(self) -> Sleep:
        """Let the time pass that it sleeps for."""
        sleep = self.expect(Sleep)
        self.now += sleep.us
        self.send(self.now)
        return sleep

    def grant(self) -> Grant:
        return self.expect(Grant)

    def outcome(self) -> AttemptOutcome:
        assert self.ended, f"it still yields {self.effect}"
        assert isinstance(self.result, AttemptOutcome)
        return self.result
