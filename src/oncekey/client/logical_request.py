"""One logical request under way: what is the same in every library and colour.

Owns the request's key and its ticket in the journal, what the hook is told, and what the caller
gets in the end. The libraries add how a request is sent and what came of it; driving.py does what
the flow asks for.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from oncekey.client import retry_rules
from oncekey.client.delivery import Delivery, Progress
from oncekey.client.errors import RetriesExhausted
from oncekey.client.key_source import choose
from oncekey.client.request_identity import Asked, field_of, tag_of
from oncekey.client.retry_clock import Readings
from oncekey.client.retry_effects import (
    SECOND_US,
    Answered,
    Begun,
    Broke,
    Ending,
    Moment,
    Send,
    Tell,
    Trouble,
    Verdict,
)
from oncekey.client.retry_flow import Flow, deliver
from oncekey.client.settings import Settings

R = TypeVar("R")

REFUSED_FROM = 400  # what is refused for good was not carried out: its intent may come corrected
FAILED_FROM = 500  # a failure that is replayed does not tell whether it had an effect

_logger = logging.getLogger("oncekey")


class Errand(ABC, Generic[R]):
    """A request to deliver; R is the library's response."""

    exhausted: ClassVar[type[RetriesExhausted]]
    tells_cause: ClassVar[bool] = True  # whether the text of the library's errors is fit for a log

    def __init__(
        self, settings: Settings, clock: Readings, asked: Asked, header: str | None, given: object
    ) -> None:
        """`header` is the key in the request's header, if any; `given` what came along with it.

        Raises NotSent or InvalidKey where it must not be sent.
        """
        journal = settings.journal
        chosen = choose(
            asked,
            header,
            given,
            namespace=settings.namespace,
            has_journal=journal is not None,
        )
        self.settings = settings
        self.clock = clock
        self.flow: Flow = deliver(settings.terms)
        self.key = chosen.key
        self.response: R | None = None
        self.error: Exception | None = None
        self._asked = asked
        self._chosen = chosen
        self._harmless = False  # from its beginning on: whether no try can have had an effect
        if not chosen.in_header:
            field_of(chosen.key, quoted=settings.quoted)  # a bad key leaves no entry behind
        self._journal = journal if chosen.journaled else None
        self._ticket = (
            self._journal.ticket(
                chosen.key,
                asked.digest,
                account=asked.account,
                intent=chosen.intent,
                given=chosen.own,
            )
            if self._journal is not None
            else None
        )

    # --- what the flow asks for -----------------------------------------------------------------

    @property
    def journaled(self) -> bool:
        return self._ticket is not None

    def enter(self) -> None:
        """Have the key written down. Waits for the disk."""
        if self._journal is not None and self._ticket is not None:
            self._journal.begin(self._ticket)

    def begun(self) -> Begun:
        """Ready to send, under whichever key it is."""
        used = self._chosen.used
        if self._ticket is not None:
            self.key = self._ticket.key
            used = used or self._ticket.reused
        # Sent on by the library above, after an answer that did nothing about it.
        used = used and not self.settings.fresh_keys.pop(self.key, False)
        self._harmless = not used
        if not self._chosen.in_header:
            # On the request itself: whoever sends it on (a redirect, an auth flow) keeps the key.
            self._set_header(field_of(self.key, quoted=self.settings.quoted))
        return Begun(self.clock.now(), used)

    @property
    def unsent(self) -> bool:
        """Whether the journal need not keep the key, although no answer settled it: it was new,
        and no try can have had an effect."""
        return self._harmless and self._ticket is not None and self._ticket.held

    def leave(self, *, settled: bool) -> None:
        """Have the key crossed out, or marked as answered; or left open. Waits for the disk."""
        if self._journal is None or self._ticket is None:
            return
        if settled:
            status = 0 if self.response is None else self._status(self.response)
            if status < FAILED_FROM:
                self._journal.settle(self._ticket, done=0 < status < REFUSED_FROM)
        elif self.unsent:
            self._journal.settle(self._ticket, done=False)
            # Sent again, the request must get an entry again, so it must not come with a key.
            self._take_back()

    def release(self) -> None:
        """It is over, however it ended."""
        if self._journal is not None and self._ticket is not None:
            self._journal.release(self._ticket)

    def tell(self, ask: Tell) -> None:
        hook = self.settings.on_progress
        if hook is None:
            return
        progress = Progress(
            kind=ask.kind,
            method=self._asked.method,
            url=self._asked.shown,
            tag=tag_of(self.key),
            attempt=ask.attempt,
            status=ask.status,
            seconds=ask.us / SECOND_US,
            why=ask.why,
        )
        try:
            hook(progress)
        except Exception:
            _logger.exception("on_progress raised at %r; the request goes on", ask.kind.value)

    # --- what came of a try -----------------------------------------------------------------------

    def _moment(self) -> Moment:
        return Moment(self.clock.now(), self.clock.wall(), self.clock.chance())

    def head(self, response: R) -> Answered:
        """What a response says before its body is read."""
        headers = self._headers(response)
        return Answered(
            self._status(response),
            Moment(self.clock.now(), self.clock.wall(), 0.0),
            headers.get("Retry-After"),
            headers.get("Date"),
            replayed=self._is_replayed(headers),
        )

    def answered(
        self, response: R, head: Answered, body: bytes | None, error: Exception | None = None
    ) -> Answered:
        """A response came, with a `body` (None: too much of it), or broke off with an error."""
        # Where the status alone says what to do, a broken body takes nothing from it.
        self.response = response if error is None or retry_rules.judge(head).again else None
        self.error = error
        headers = self._headers(response)
        warned = retry_rules.warns_of_new_key(
            headers.get("Content-Type"), headers.get("Content-Encoding"), body
        )
        broke = None if error is None else self._trouble(error)
        fact = head._replace(moment=self._moment(), broke=broke, doubtful=warned)
        if self._harmless and broke is None and head.status in retry_rules.SENT_ON:
            self.settings.remember_fresh(self.key)
        self._harmless = self._harmless and retry_rules.judge(fact).harmless
        return fact

    def until(self, ask: Send) -> int | None:
        """When a try that begins now must be over, on our clock."""
        return None if ask.left is None else self.clock.now() + ask.left

    def broke(self, error: Exception) -> Broke:
        """No response came."""
        self.response = None
        self.error = error
        fact = Broke(self._trouble(error), self._moment())
        self._harmless = self._harmless and (
            retry_rules.judge(fact).harmless or self._refused(error)
        )
        return fact

    # --- the end ----------------------------------------------------------------------------------

    def conclude(self, verdict: Verdict) -> R:
        """The response for the caller, or the error that says what to do."""
        if verdict.ending is Ending.EXHAUSTED:
            self._give_up(verdict)
        if verdict.ending is Ending.FAILED:
            assert self.error is not None
            raise self.error
        assert self.response is not None
        headers = self._headers(self.response)
        delivery = Delivery(
            key=self.key,
            attempts=verdict.attempts,
            replayed=self._is_replayed(headers),
            settled=verdict.settled,
            waited=verdict.waited / SECOND_US,
            elapsed=verdict.elapsed / SECOND_US,
        )
        if retry_rules.drops_key(self._asked.method, self._status(self.response)):
            self._hide_key()
        return self._delivered(self.response, delivery)

    def _give_up(self, verdict: Verdict) -> NoReturn:
        tries = "1 try" if verdict.attempts == 1 else f"{verdict.attempts} tries"
        if verdict.safe_new_key:
            advice = "None of them can have had an effect: it is safe to use a new key"
        else:
            advice = (
                "It may have been carried out: do NOT use a new key. Send the same request with "
                "the same key again, or find out first"
            )
            if self._ticket is not None and self._ticket.held:
                advice += "; the journal keeps the key for the next such request"
        last = self._last()
        raise self.exhausted(
            f"gave up after {tries} in {verdict.elapsed / SECOND_US:.1f} s: {verdict.why}. "
            f"The last one: {verdict.last}. {advice}",
            key=self.key,
            attempts=verdict.attempts,
            elapsed=verdict.elapsed / SECOND_US,
            last=last,
            request=self._sent(),
            response=None if self.response is None else self._readable(self.response),
            safe_new_key=verdict.safe_new_key,
            operation=f"{self._asked.method} {self._asked.shown}",
            tag=tag_of(self.key),
        ) from (last if self.tells_cause and isinstance(last, Exception) else None)

    def _last(self) -> int | Exception | None:
        return self.error if self.response is None else self._status(self.response)

    def _is_replayed(self, headers: Mapping[str, Any]) -> bool:
        names = self.settings.replay_headers
        return any(str(headers.get(name, "")).strip().lower() == "true" for name in names)

    # --- what differs by library -----------------------------------------------------------------

    @abstractmethod
    def _set_header(self, value: str) -> None: ...

    @abstractmethod
    def _hide_key(self) -> None:
        """Take the key's header off the request, of which a redirect is about to make another one,
        and remember it in case that this very request is sent again."""

    @abstractmethod
    def _take_back(self) -> None:
        """Have the request as it was before its key's header was set."""

    @abstractmethod
    def _refused(self, error: Exception) -> bool:
        """Whether the library has not even begun to send it: an address that it cannot use."""

    @abstractmethod
    def _sent(self) -> object:
        """The library's request."""

    @abstractmethod
    def _trouble(self, error: Exception) -> Trouble: ...

    @abstractmethod
    def _status(self, response: R) -> int: ...

    @abstractmethod
    def _headers(self, response: R) -> Mapping[str, Any]: ...

    @abstractmethod
    def _delivered(self, response: R, delivery: Delivery) -> R:
        """The response as the caller gets it."""

    @abstractmethod
    def _readable(self, response: R) -> R:
        """A response that an error carries: read, and bound to nothing."""
