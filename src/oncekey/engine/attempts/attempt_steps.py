"""The steps of one running attempt: which names are in use, what each step sends and returns.

`attempt.step(...)`, sync or async, does three things:

1.  `AttemptSteps.begin` checks the call and makes a RunningStep of it: its child key, the request
    to send, and what is stored of it.
2.  The attempt drives core/step_flow.py with it, which calls the step's function.
3.  `AttemptSteps.end` turns the outcome into the value or the error that the body gets;
    `AttemptSteps.doubt` takes its place if the driver was interrupted.

The stored bytes are those of core/step_format.py. Knows no store, thread or loop.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from oncekey.core.codec import (
    JSON,
    Codec,
    StoredError,
    StoredValue,
    Tombstone,
    pack_value,
    unpack,
    value_of,
)
from oncekey.core.duration import Duration, microseconds
from oncekey.core.effects import Returned
from oncekey.core.errors import (
    ConfigurationError,
    InvalidKey,
    NotReplayable,
    NotStarted,
    StoreUnavailable,
    Terminal,
)
from oncekey.core.record import Step
from oncekey.core.step_flow import UNSAVED, StepOutcome
from oncekey.core.step_format import (
    ARGUMENTS,
    intent_facts,
    pack_step,
    refuse_reserved,
    result_facts,
    unpack_step,
)

if TYPE_CHECKING:
    from oncekey.engine.attempts.attempt_base import AttemptBase

STEPS_MAX: Final = 100

_GIVEN: Final = object()  # in use by a step whose result the body has


class RunningStep:
    """A step under way: its `attempt`, its `name`, its child key as `key` and its child UUID as
    `uuid`. Both are in its intent, so that people find what was sent over there.

    args         what its function is called with: the child key, and the request as it is stored,
                 so that every run of the step sends the same
    saved        what is stored of it, None on its first run
    intent       what is stored before it is called
    codec        stores its result
    probe_grace  microseconds in which a probe's "nothing" is not believed; None without a probe
    """

    __slots__ = (
        "_lock",
        "_open",
        "_sent",
        "args",
        "attempt",
        "codec",
        "intent",
        "key",
        "name",
        "probe_grace",
        "saved",
        "uuid",
    )

    def __init__(
        self,
        attempt: AttemptBase,
        name: str,
        saved: Step | None,
        request: Any,
        probed: bool,
        probe_grace: Duration | None,
        codec: Codec,
    ) -> None:
        self.attempt = attempt
        self.name = name
        self.key = attempt.child_key(name)
        self.uuid = attempt.child_uuid(name)
        refuse_reserved(name)
        self.probe_grace = _grace_us(attempt, name, probed, probe_grace)
        self.saved = saved
        envelope = _request_envelope(name, saved, request, attempt._job.policy.max_bytes)
        self.args = (self.key, _request(name, envelope)) if envelope else (self.key,)
        self.intent = pack_step(intent_facts(self.key, self.uuid), envelope)
        self.codec = codec
        self._open = True
        self._sent: bytes | None = None
        self._lock = threading.Lock()

    def admits(self, request: bytes) -> bool:
        """True if the step's key may be sent with this request, given as a digest: with the first
        one, and with the same one again. Another request under the same key would be refused, or
        worse, answered with the first one's response."""
        with self._lock:
            if self._sent is None:
                self._sent = request
            return self._sent == request


class AttemptSteps:
    """The steps of one attempt: what is stored of each, and which names are in use.

    A name is in use while a step of that name runs, and after the body has got its result: a
    second step would be skipped and given the first one's result, whatever it was to send. A step
    that raised, or that an earlier attempt has finished, may be called.
    """

    __slots__ = ("_in_use", "stored")

    def __init__(self, stored: Sequence[Step]) -> None:
        self.stored = {s.name: s for s in stored if s.name != ARGUMENTS} if stored else {}
        self._in_use: dict[str, object] = {}

    @property
    def given(self) -> list[str]:
        """The names of the finished steps whose result the body has got, in order."""
        return [name for name, holder in self._in_use.copy().items() if holder is _GIVEN]

    def begin(
        self,
        attempt: AttemptBase,
        name: str,
        *,
        request: Any,
        probed: bool,
        probe_grace: Duration | None,
        codec: Codec,
    ) -> RunningStep:
        """Check a call of `attempt.step` and work it out. The name is in use from here on."""
        attempt.check()
        self._check_attempt(attempt, name, probed or request is not None)
        mine = object()
        holder = self._in_use.setdefault(name, mine)
        if holder is not mine:
            raise _used_twice(attempt, name, holder)
        try:
            saved = self.stored.get(name)  # only now: whoever used the name before has ended
            if saved is None and len({*self.stored, *self._in_use}) > STEPS_MAX:
                raise InvalidKey(
                    f"step {name!r} would be number {STEPS_MAX + 1}; an operation has at most "
                    f"{STEPS_MAX} steps",
                    operation=attempt.operation,
                    tag=attempt._job.identity.tag,
                )
            return RunningStep(attempt, name, saved, request, probed, probe_grace, codec)
        except BaseException:
            self.allow_again(name)
            raise

    def end(self, step: RunningStep, outcome: StepOutcome) -> Any:
        """The step's value for the body; raises what the body is to see instead."""
        name, attempt = step.name, step.attempt
        if outcome.unrecorded:
            self.doubt(step)
            raise StoreUnavailable(
                f"step {name!r} could not be recorded ({outcome.error}); retry with the same key",
                operation=attempt.operation,
                tag=attempt._job.identity.tag,
            ) from outcome.error
        if outcome.error is None and not outcome.lost:
            self.stored[name] = Step(name, True, outcome.body, 0)
            self._in_use[name] = _GIVEN
            return self._value(step, outcome)
        if outcome.called and outcome.error is not None:
            # Its intent is stored: the next try must know that this one may have arrived.
            self.stored[name] = Step(name, False, step.intent, 0)
        self.allow_again(name)
        if outcome.lost:
            attempt._lost = True
            attempt.check()
        assert outcome.error is not None
        raise outcome.error

    def doubt(self, step: RunningStep) -> None:
        """Note that the step may have been sent and that what the store has of it is not known.
        The next try sends the same, and stores its intent first."""
        self.stored[step.name] = Step(step.name, False, step.intent, UNSAVED)
        self.allow_again(step.name)

    def allow_again(self, name: str) -> None:
        """Take a name out of use."""
        self._in_use.pop(name, None)

    def refuse_repeated(self, attempt: AttemptBase, name: str, is_queued: bool) -> None:
        """Raise ConfigurationError for a name in use, before a step is started in a thread or task
        of its own. `is_queued`: such a step was started and has not begun."""
        if is_queued or name in self._in_use:
            raise _used_twice(attempt, name, self._in_use.get(name))

    def _check_attempt(self, attempt: AttemptBase, name: str, relies_on_record: bool) -> None:
        if attempt._closed:
            raise ConfigurationError(
                f"step {name!r} came after the body of {attempt.operation!r} had ended; wait for "
                "every step before you return"
            )
        if attempt._depth and any(holder is not _GIVEN for holder in self._in_use.values()):
            raise ConfigurationError(
                f"step {name!r}: in a transaction steps run one after the other, since they are "
                "written on its one connection"
            )
        if attempt._depth and relies_on_record:
            raise ConfigurationError(
                f"step {name!r}: in a transaction request= and probe= cannot be kept, since a "
                "rollback takes what was written about the step along; run it outside"
            )

    def _value(self, step: RunningStep, outcome: StepOutcome) -> Any:
        """The value a later run would get too. A result that is too large to store is the body's
        all the same; one that no codec takes is a mistake to find on the first run, not on the
        first retry."""
        if outcome.exact:
            return outcome.raw
        envelope = unpack_step(outcome.body)[1]
        stored = unpack(envelope)
        if not outcome.kept and isinstance(stored, Tombstone) and stored.too_large:
            return outcome.raw
        where = {"operation": step.attempt.operation, "tag": step.attempt._job.identity.tag}
        if isinstance(stored, StoredValue):
            try:
                return value_of(stored, step.codec)
            except NotReplayable as error:
                self.allow_again(step.name)
                raise NotReplayable(str(error), value=outcome.raw, **where) from error
        self.allow_again(step.name)
        reason = "an error" if isinstance(stored, StoredError) else stored.reason
        when = "before but its result was not kept"
        if not outcome.kept:
            when = "but its result cannot be kept"
        raise NotReplayable(f"step {step.name!r} ran {when} ({reason})", value=outcome.raw, **where)


def packed_result(result: object, returned: Returned) -> Returned:
    """A step's packed value together with the external id and the status of its StepResult."""
    return replace(returned, body=pack_step(result_facts(result), returned.body))


def error_to_raise(errors: Sequence[BaseException]) -> BaseException:
    """The error to raise if several parallel steps failed; the others become its notes.

    Not a group: what a body raises decides what becomes of its key, and that is read from one
    error. An interruption comes first, then a Terminal, then any other error, and NotStarted last,
    since "nothing happened" is true only if all of them say so.
    """
    chosen = min(errors, key=_rank)
    for other in errors:
        if other is not chosen:
            chosen.add_note(f"beside it a step failed with {type(other).__name__}: {other}")
    return chosen


def _rank(error: BaseException) -> int:
    if not isinstance(error, Exception):
        return 0
    if isinstance(error, Terminal):
        return 1
    return 3 if isinstance(error, NotStarted) else 2


def _used_twice(attempt: AttemptBase, name: str, holder: object) -> ConfigurationError:
    why = "has given its result already" if holder is _GIVEN else "is running already"
    return ConfigurationError(
        f"step {name!r} {why} in this attempt, and nothing was sent for the second one; give "
        f"each step its own name, and number those of a loop: f'{{name}}:{{number}}'",
        operation=attempt.operation,
        tag=attempt._job.identity.tag,
    )


def _grace_us(
    attempt: AttemptBase, name: str, probed: bool, probe_grace: Duration | None
) -> int | None:
    if not probed:
        if probe_grace is not None:
            raise ConfigurationError(
                f"step {name!r}: probe_grace= is for a probe=, and there is none"
            )
        return None
    if probe_grace is None:
        return attempt._job.policy.times.lease
    return microseconds(probe_grace, name="probe_grace")


def _request_envelope(name: str, saved: Step | None, request: Any, max_bytes: int) -> bytes:
    """The request as it is stored, empty if there is none. The request of an unfinished step is
    the stored one, whatever the caller gives now: it may have arrived."""
    envelope = b"" if request is None else _packed_request(name, request, max_bytes)
    if saved is None or saved.done:
        return envelope
    before = unpack_step(saved.body)[1]
    if before and not envelope:
        raise ConfigurationError(
            f"step {name!r} was begun with a request= and is called without one now; what may "
            "have arrived must be sent again as it was"
        )
    return before or envelope


def _packed_request(name: str, request: Any, max_bytes: int) -> bytes:
    try:
        envelope = pack_value(JSON, request)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"step {name!r}: this request cannot be written down before it is sent ({error})"
        ) from error
    if len(envelope) > max_bytes:
        raise ConfigurationError(
            f"step {name!r}: its request has {len(envelope)} bytes, max_bytes is "
            f"{max_bytes}; keep large content elsewhere and send where it is"
        )
    return envelope


def _request(name: str, envelope: bytes) -> Any:
    stored = unpack(envelope)
    if isinstance(stored, StoredValue) and stored.codec == JSON.name:
        return JSON.load(stored.data)
    raise NotReplayable(f"step {name!r}: the request that was sent cannot be read any more")
