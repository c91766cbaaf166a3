"""What a consumer does with a queue, as programs of calls: look it up, receive, settle, extend.

    REMOVE        DeleteMessageBatch
    HIDE, RETRY   ChangeMessageVisibilityBatch, to the seconds asked for
    GIVE_BACK     the same, to 0: another consumer may have it at once
    DEAD_LETTER   SendMessageBatch to the dead-letter queue, then DeleteMessageBatch
    PARK          the same, to the park queue or else the dead-letter queue. A message of unknown
                  outcome that stayed hidden would be received again and again until SQS itself
                  moved it there, without saying why; and in a FIFO queue it would block its group

A batch call fails for single entries. What fails is left as it is: SQS delivers it again, and the
store then says what became of it. A message is deleted only after its letter was taken.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn
from oncekey.queues.sqs.broker_calls import (
    BATCH_MAX,
    LASTING,
    PASSING,
    Call,
    CallFailed,
    Cause,
    Program,
    SqsRefused,
    find_url,
    in_batches,
    send_batch,
)
from oncekey.queues.sqs.message import (
    has_marks,
    in_sizes,
    letter_entry,
    message_of,
    receipt_of,
    redrive_entry,
    source_of,
    unparked_entry,
    was_moved,
)
from oncekey.queues.sqs.settings import (
    VISIBILITY_MAX_S,
    WAIT_MAX_S,
    QueueAttributes,
    check_dead_letters,
    no_dead_letters,
    parse_attributes,
    receives_warning,
)

_log = logging.getLogger("oncekey")
# SQS counts the twelve hours from its own receive, a moment before ours.
_VISIBILITY_MARGIN_S: Final = 2
# A long poll asks every server of SQS; a letter that is left in its place is not received twice.
_LETTER_WAIT_S: Final = 1
LETTER_HIDDEN_S: Final = 300
_COUNTS: Final = ("", "NotVisible", "Delayed")


class QueueProgram:
    """The programs for one queue. It is shared by threads: it keeps no more than single entries of
    a dictionary, and the attributes that `look_up` found."""

    def __init__(
        self,
        queue: str,
        dead_letter_queue: str | None = None,
        park_queue: str | None = None,
        *,
        max_tries: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`queue` is its URL, its name or its ARN, and so are the two others; `clock` is a
        monotonic one."""
        self._names = (queue, dead_letter_queue, park_queue)
        self._max_tries = max_tries
        self._clock = clock
        self._source: QueueAttributes | None = None
        self._letters: dict[Kind, QueueAttributes] = {}
        # When a message was received, by its receipt handle: SQS hides it for twelve hours at most.
        self._received: dict[str, float] = {}

    # --- the queue --------------------------------------------------------------------------------

    def look_up(self) -> Program[BrokerFacts]:
        """Ask SQS about the queues, and refuse what cannot be consumed safely."""
        queue, dead_name, park_name = self._names
        source = yield from _attributes_of(queue)
        if not (dead_name or source.dead_letters):
            raise no_dead_letters(source)
        dead = yield from _attributes_of(dead_name or source.dead_letters)
        check_dead_letters(source, dead)
        parked = dead
        if park_name:
            parked = yield from _attributes_of(park_name)
            check_dead_letters(source, parked)
        warning = receives_warning(source, self._max_tries)
        if warning:
            _log.warning("%s", warning)
        self._source = source
        self._letters = {Kind.DEAD_LETTER: dead, Kind.PARK: parked}
        return BrokerFacts(
            queue=source.name,
            identity=source.identity,
            # A dead letter is sent anew and so has its queue's whole retention before it.
            retention=source.retention_s + max(dead.retention_s, parked.retention_s),
            hold_max=VISIBILITY_MAX_S,
            receives_max=source.max_receives or None,
            ordered=source.is_fifo,
            broker=source.broker,
        )

    @property
    def source(self) -> QueueAttributes:
        if self._source is None:
            raise ConfigurationError("this queue was not looked up yet: call facts() first")
        return self._source

    # --- receive ----------------------------------------------------------------------------------

    def receive(
        self, most: int, wait: float, lease: float, new_token: Callable[[], str]
    ) -> Program[list[Message]]:
        """Receive at most `most` messages: SQS gives ten per call, and waits in the first one."""
        messages: list[Message] = []
        while len(messages) < most:
            asked = min(most - len(messages), BATCH_MAX)
            arguments: dict[str, Any] = {
                "QueueUrl": self.source.url,
                "MaxNumberOfMessages": asked,
                "WaitTimeSeconds": 0 if messages else min(int(wait), WAIT_MAX_S),
                "VisibilityTimeout": min(math.ceil(lease), VISIBILITY_MAX_S),
                "MessageAttributeNames": ["All"],
                "MessageSystemAttributeNames": ["All"],
            }
            if self.source.is_fifo:
                # If the answer is lost, botocore asks again with the same id and gets the same
                # messages; without it their groups would wait for the whole lease.
                arguments["ReceiveRequestAttemptId"] = new_token()
            began = self._clock()
            answer = yield Call("receive_message", arguments)
            if isinstance(answer, CallFailed):
                if messages:
                    break  # what was received before is handled; the next receive raises it
                raise _error("receive from", self.source.name, answer)
            received = answer.get("Messages", ())
            for raw in received:
                self._received[str(raw["ReceiptHandle"])] = began
                messages.append(message_of(raw, self.source.name))
            if len(received) < asked:
                break
        return messages

    # --- settle -----------------------------------------------------------------------------------

    def settle(self, settled: Sequence[Settled]) -> Program[None]:
        """Do what the dispositions say; raises only after all of it was tried."""
        failures: list[CallFailed] = []
        removed = [message for message, what in settled if what.kind is Kind.REMOVE]
        removed += yield from self.send_letters(settled, failures)
        yield from self._delete(removed, failures)
        shown = [
            (message, what.seconds)
            for message, what in settled
            if what.kind in (Kind.HIDE, Kind.RETRY, Kind.GIVE_BACK)
        ]
        yield from self._change_visibility(shown, failures)
        for message, _ in settled:
            self._received.pop(receipt_of(message), None)
        self._raise_worst("settle messages of", failures)

    def send_letters(
        self, settled: Sequence[Settled], failures: list[CallFailed]
    ) -> Program[list[Message]]:
        """Send the dead letters and the parked messages, and return those that SQS has taken; why
        it did not take the others is added to `failures`."""
        taken: list[Message] = []
        for kind, target in self._letters.items():
            of_kind = [one for one in settled if one[1].kind is kind]
            if of_kind:
                taken += yield from self._send_to(target, of_kind, failures)
        return taken

    def extend(self, messages: Sequence[Message], seconds: float) -> Program[None]:
        """Hide these messages for so many seconds from now, as far as SQS allows."""
        failures: list[CallFailed] = []
        yield from self._change_visibility([(one, seconds) for one in messages], failures)
        self._raise_worst("keep hidden messages of", failures)

    # --- dead letters, back -----------------------------------------------------------------------

    def redrive(self, most: int, id: str, parked: bool, go_on: GoOn) -> Program[int]:
        """Move at most `most` dead letters of this queue back into it, or parked messages, and
        return how many. Letters of other queues that share the dead-letter queue stay, and so do
        one without room for the header `oncekey-redrive`, and one that this redrive has moved
        before and that failed again."""
        if self._source is None:
            yield from self.look_up()
        letters_of = self._letters[Kind.PARK if parked else Kind.DEAD_LETTER]
        if parked and letters_of == self._letters[Kind.DEAD_LETTER]:
            raise ConfigurationError(
                f"parked messages of {self.source.name} are among its dead letters in "
                f"{letters_of.name}, since this consumer has no park_queue=; move the dead letters"
            )
        # No more than there were at the beginning, for a letter without room for the mark.
        most = min(most, (yield from _count_of(letters_of)))
        moved, left = 0, dict[str, Message]()
        while moved < most:
            letters = yield from _receive_letters(letters_of, min(most - moved, BATCH_MAX))
            if all(letter.delivery_id in left for letter in letters):
                break  # there are none, or those that stay are shown again
            for letter in letters:
                is_moved = yield from self._move_back(letter, letters_of, id, parked)
                moved += is_moved
                if not is_moved:
                    left[letter.delivery_id] = letter
            if not go_on(moved):
                break
        for batch in in_batches(list(left.values())):
            entries = [{"ReceiptHandle": receipt_of(one), "VisibilityTimeout": 0} for one in batch]
            yield from send_batch("change_message_visibility_batch", letters_of.url, entries)
        return moved

    def _move_back(
        self, letter: Message, dead: QueueAttributes, id: str, parked: bool
    ) -> Program[bool]:
        if source_of(letter) not in ("", self.source.arn) or was_moved(letter, id):
            return False
        most = self.source.max_bytes
        entry = unparked_entry(letter, id, most) if parked else redrive_entry(letter, id, most)
        if entry is None:
            _log.warning(
                "letter %s in %s has no room for the header oncekey-redrive and stays; free its "
                "key with oncekey release, and move it by hand",
                letter.delivery_id,
                dead.name,
            )
            return False
        failed = yield from send_batch("send_message_batch", self.source.url, [entry])
        if failed:
            raise _error("move a dead letter back to", self.source.name, failed[0])
        entries = [{"ReceiptHandle": receipt_of(letter)}]
        failed = yield from send_batch("delete_message_batch", dead.url, entries)
        if failed:  # it would be moved again, which the redrive's id makes harmless
            raise _error("remove a dead letter from", dead.name, failed[0])
        return True

    def _send_to(
        self, target: QueueAttributes, letters: list[Settled], failures: list[CallFailed]
    ) -> Program[list[Message]]:
        arn, most = self.source.arn, target.max_bytes
        entries = [letter_entry(message, what, arn, most) for message, what in letters]
        taken: list[Message] = []
        for positions in in_sizes(entries, target.max_bytes):
            batch = [entries[position] for position in positions]
            failed = yield from send_batch("send_message_batch", target.url, batch)
            for number, position in enumerate(positions):
                message, what = letters[position]
                if number in failed:
                    failures.append(failed[number])
                    _log.error(
                        "message %s of %s stays: %s does not take it: %s",
                        message.delivery_id,
                        self.source.name,
                        target.name,
                        failed[number],
                    )
                    continue
                taken.append(message)
                if not has_marks(entries[position]):
                    _log.warning(
                        "message %s was moved to %s without the reason, for which it has no room: "
                        "%s. The store has it too; before it is moved back, free its key with "
                        "oncekey release",
                        message.delivery_id,
                        target.name,
                        what.reason,
                    )
        return taken

    def _delete(self, messages: list[Message], failures: list[CallFailed]) -> Program[None]:
        for batch in in_batches(messages):
            entries = [{"ReceiptHandle": receipt_of(message)} for message in batch]
            failed = yield from send_batch("delete_message_batch", self.source.url, entries)
            self._note("is delivered again", batch, failed, failures)

    def _change_visibility(
        self, shown: list[tuple[Message, float]], failures: list[CallFailed]
    ) -> Program[None]:
        # After its twelve hours SQS has shown a message again, and another consumer may have it. An
        # old receipt handle would change the visibility for that one.
        left = [(message, seconds, self._time_left(message)) for message, seconds in shown]
        ours = [one for one in left if one[2] > 0]
        for batch in in_batches(ours):
            entries = [
                {
                    "ReceiptHandle": receipt_of(message),
                    "VisibilityTimeout": min(math.ceil(seconds), most),
                }
                for message, seconds, most in batch
            ]
            operation = "change_message_visibility_batch"
            failed = yield from send_batch(operation, self.source.url, entries)
            messages = [message for message, *_ in batch]
            self._note("is delivered when its old deadline ends", messages, failed, failures)

    def _time_left(self, message: Message) -> int:
        """For how many whole seconds SQS lets the message be hidden yet: twelve hours in all."""
        now = self._clock()
        hidden = now - self._received.get(receipt_of(message), now)
        return VISIBILITY_MAX_S - _VISIBILITY_MARGIN_S - math.ceil(hidden)

    def _note(
        self,
        consequence: str,
        messages: Iterable[Message],
        failed: dict[int, CallFailed],
        failures: list[CallFailed],
    ) -> None:
        for number, message in enumerate(messages):
            failure = failed.get(number)
            if failure is None:
                continue
            failures.append(failure)
            # A message that is not ours any more was delivered again already: nothing to do.
            level = logging.DEBUG if failure.cause is Cause.NOT_OURS else logging.WARNING
            _log.log(
                level,
                "message %s of %s %s: %s",
                message.delivery_id,
                self.source.name,
                consequence,
                failure,
            )

    def _raise_worst(self, doing: str, failures: list[CallFailed]) -> None:
        for causes in (LASTING, PASSING):
            for failure in failures:
                if failure.cause in causes:
                    raise _error(doing, self.source.name, failure)


def _count_of(queue: QueueAttributes) -> Program[int]:
    """How many messages a queue has, those that are hidden included, as SQS counts them."""
    answer = yield Call("get_queue_attributes", {"QueueUrl": queue.url, "AttributeNames": ["All"]})
    if isinstance(answer, CallFailed):
        raise _error("ask about", queue.name, answer)
    found = answer["Attributes"]
    return sum(int(found.get(f"ApproximateNumberOfMessages{name}", 0)) for name in _COUNTS)


def _receive_letters(dead: QueueAttributes, most: int) -> Program[list[Message]]:
    arguments = {
        "QueueUrl": dead.url,
        "MaxNumberOfMessages": most,
        "WaitTimeSeconds": _LETTER_WAIT_S,
        "VisibilityTimeout": LETTER_HIDDEN_S,
        "MessageAttributeNames": ["All"],
        "MessageSystemAttributeNames": ["All"],
    }
    answer = yield Call("receive_message", arguments)
    if isinstance(answer, CallFailed):
        raise _error("receive from", dead.name, answer)
    return [message_of(raw, dead.name) for raw in answer.get("Messages", ())]


def _attributes_of(queue: str) -> Program[QueueAttributes]:
    """Look up a queue by its URL, its ARN or its name."""
    url = yield from find_url(queue)
    if isinstance(url, CallFailed):
        raise _error("find", queue, url, at_start=True)
    answer = yield Call("get_queue_attributes", {"QueueUrl": url, "AttributeNames": ["All"]})
    if isinstance(answer, CallFailed):
        raise _error("ask about", queue, answer, at_start=True)
    return parse_attributes(url, answer["Attributes"])


def _error(doing: str, queue: str, failure: CallFailed, *, at_start: bool = False) -> OncekeyError:
    text = f"cannot {doing} the queue {queue}: {failure}"
    if failure.cause in PASSING:
        return BrokerUnavailable(text)
    return ConfigurationError(text) if at_start else SqsRefused(text)
