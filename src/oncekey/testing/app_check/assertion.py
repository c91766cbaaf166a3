"""`assert_idempotent`: does this request of this app keep the promises of an idempotency key?

    report = assert_idempotent(client, SampleRequest("POST", "/charges", json={"cents": 500}),
                               effects=charges)

The app runs in the process of the test, behind the test client of its framework. Cases are in
check_cases.py; here the arguments are checked, first requests show that the app can be observed,
and the results become a report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sized
from dataclasses import replace
from typing import Any, Final, NamedTuple, Required, TypedDict, Unpack

from oncekey.core.errors import ConfigurationError
from oncekey.engine.new_key import new_key
from oncekey.testing.app_check.check_actions import (
    Action,
    CheckSettings,
    CountEffects,
    Gate,
    Pause,
    Send,
    Story,
)
from oncekey.testing.app_check.check_cases import CASES
from oncekey.testing.app_check.check_drivers import run_case, run_case_async
from oncekey.testing.app_check.check_report import (
    CaseResult,
    CaseStatus,
    IdempotencyReport,
    NotIdempotent,
)
from oncekey.testing.app_check.client_adapters import Send as Sender
from oncekey.testing.app_check.client_adapters import sender_of
from oncekey.testing.app_check.sample_request import Answer, AnswerKind, Submission
from oncekey.testing.effect_counter import EffectCounter
from oncekey.testing.failpoints import Failpoints

CONCURRENCY_DEFAULT: Final = 5
CONCURRENCY_MAX: Final = 100
HEADER_DEFAULT: Final = "Idempotency-Key"
ALL: Final = "all"
FIRST_REQUESTS_MAX: Final = 4  # until two of them have the same number of effects

_log = logging.getLogger("oncekey.testing")


class CheckOptions(TypedDict, total=False):
    """The options of a check, for type checkers; `assert_idempotent` says what they mean."""

    effects: Required[Callable[[], Any] | Sized]
    other_request: Any
    other_caller: Any
    rejected_caller: Any
    failpoints: Failpoints | None
    concurrency: int
    header: str
    only: Collection[str] | str | None
    skip: Collection[str] | str
    require: Collection[str] | str


def assert_idempotent(
    client: Any, request: Any, **options: Unpack[CheckOptions]
) -> IdempotencyReport:
    """Check that a request can be retried safely; raises NotIdempotent if it cannot.

    client           Starlette's TestClient, an httpx.Client, the test client of Flask or Django, or
                     a function `(key, request)` that runs the operation
    request          a SampleRequest that the app accepts (for a function anything), or a function
                     that makes one for a key
    effects          how often the operation ran: `Effects`, or a function that returns a number or
                     a collection, such as `Order.objects.count`
    other_request    another valid request, for the case other_body
    other_caller     headers of another caller, or another client, for the case other_caller
    rejected_caller  headers of a caller, or a client, that the app must reject
    failpoints       `Failpoints` of the app's store, for the case crash
    concurrency      how many requests are sent together
    header           the name of the header with the key
    only, skip       the names of the cases to check, or to leave out
    require          names of cases that must have been checked, or "all"
    """
    __tracebackhide__ = True
    check = AppCheck(client, request, **options)
    return check.conclude(run_case(check.flow(), check.senders, check.effects))


async def assert_idempotent_async(
    client: Any, request: Any, **options: Unpack[CheckOptions]
) -> IdempotencyReport:
    """The same for an httpx.AsyncClient, Django's AsyncClient or an async function. `effects` may
    be an async function."""
    __tracebackhide__ = True
    check = AppCheck(client, request, **options)
    return check.conclude(await run_case_async(check.flow(), check.senders, check.effects))


class _Selection(NamedTuple):
    """Which cases are checked, and which must be."""

    left_out: dict[str, str]
    required: tuple[str, ...]


class AppCheck:
    """One check: its checked arguments, and the generator of everything that is done."""

    def __init__(
        self,
        client: Any,
        request: Any,
        *,
        effects: Callable[[], Any] | Sized,
        other_request: Any = None,
        other_caller: Any = None,
        rejected_caller: Any = None,
        failpoints: Failpoints | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        header: str = HEADER_DEFAULT,
        only: Collection[str] | str | None = None,
        skip: Collection[str] | str = (),
        require: Collection[str] | str = (),
    ) -> None:
        if not 2 <= concurrency <= CONCURRENCY_MAX:
            raise ConfigurationError(f"concurrency={concurrency} must be 2 to {CONCURRENCY_MAX}")
        self.effects = _counts_of(effects)
        self.senders: dict[str, Sender] = {"caller": sender_of(client, header=header)}
        for name, caller in (
            ("other caller", other_caller),
            ("rejected caller", rejected_caller),
        ):
            if caller is not None:
                self.senders[name] = _caller_sender(client, caller, header)
        self._selection = _selection(only, skip, require)
        self._settings = CheckSettings(
            request=_maker(request),
            other_request=None if other_request is None else _maker(other_request),
            unit=1,
            clients=frozenset(self.senders),
            concurrency=concurrency,
            gate=_gate_of(effects, failpoints),
            failpoints=failpoints,
        )
        self._header = header

    def flow(self) -> Generator[Action, Any, list[CaseResult]]:
        """Everything that is done, in its order; the results of all cases."""
        settings = replace(self._settings, unit=(yield from self._first_requests()))
        results = []
        for name, case in CASES.items():
            if name in self._selection.left_out:
                why = self._selection.left_out[name]
                results.append(CaseResult(name, CaseStatus.NOT_CHECKED, why))
            else:
                results.append((yield from case(Story(name, settings))))
        if not any(result.status is CaseStatus.VIOLATED for result in results):
            yield from self._no_more_effects()
        return results

    def _first_requests(self) -> Generator[Action, Any, int]:
        """Requests with fresh keys, to see that they work and that their effects are seen; how many
        these are. The very first one may have more, for it may find an empty database."""
        counts: list[int] = []
        while len(counts) < 2 or counts[-1] != counts[-2]:
            if len(counts) == FIRST_REQUESTS_MAX:
                raise AssertionError(
                    f"nothing can be checked: requests with fresh keys have different numbers of "
                    f"effects, one after the other {', '.join(map(str, counts))}.\n"
                    f"  what to do: let effects= count what this operation does, and nothing else"
                )
            counts.append((yield from self._first_request(is_later=bool(counts))))
        return counts[-1]

    def _first_request(self, is_later: bool) -> Generator[Action, Any, int]:
        key = new_key()
        submission = Submission(key, self._settings.request(key))
        before: int = yield CountEffects()
        answer: Answer = yield Send(submission)
        after: int = yield CountEffects()
        if answer.kind is not AnswerKind.SUCCESS:
            raise AssertionError(
                f"nothing can be checked: the request itself is not carried out.\n"
                f"  sent:       {submission}\n  came back:  {answer}\n"
                f"  what to do: give a request that the app accepts, with everything it needs: the "
                f"path, the caller, a body that is valid. The key is in the header {self._header}; "
                f"header= names another one"
                + ("; above is where this was raised" if answer.error is not None else "")
            ) from answer.error
        if after <= before and is_later:
            raise AssertionError(
                f"nothing can be checked: a second request, with a key of its own, had no effect.\n"
                f"  sent:       {submission}\n  came back:  {answer}\n"
                f"  what to do: if the app recognises what it has already done by the body, make a "
                f"request for each key (request=lambda key: ...); if effects= counts distinct "
                f"things, let it count all of them"
            )
        if after <= before:
            raise AssertionError(
                f"nothing can be checked: effects= does not see the effect of a request.\n"
                f"  sent:       {submission}\n  came back:  {answer}\n"
                f"  effects:    {before} before it, {after} after it\n"
                f"  what to do: count what the operation does to the world, rows or calls, anew at "
                f"each call of effects=. If the app does it after its response, let effects= wait "
                f"for that"
            )
        return after - before

    def _no_more_effects(self) -> Generator[Action, Any, None]:
        """A last look: what comes after all answers was not counted in its case."""
        before: int = yield CountEffects()
        yield Pause()
        after: int = yield CountEffects()
        if after != before:
            raise AssertionError(
                f"nothing can be said: {after - before} more effects came after the last answer.\n"
                f"  what to do: if the app does something after its response, let effects= wait "
                f"for that"
            )

    def conclude(self, results: list[CaseResult]) -> IdempotencyReport:
        """The report, if all is well; raises NotIdempotent if not."""
        __tracebackhide__ = True
        report = IdempotencyReport(results)
        _log.info("assert_idempotent:\n%s", report)
        required = self._selection.required
        if report.violated or any(name in report.not_checked for name in required):
            raise NotIdempotent(report, required)
        return report


def _counts_of(effects: Any) -> Callable[[], Any]:
    if callable(effects):
        counts: Callable[[], Any] = effects
        return counts
    if not isinstance(effects, Sized):
        raise ConfigurationError(
            f"effects= is a {type(effects).__name__}; give Effects(), or a function that returns "
            "how often the operation ran"
        )
    return lambda: len(effects)


def _maker(request: Any) -> Callable[[str], Any]:
    """A function that makes the request of a key."""
    if callable(request):
        make: Callable[[str], Any] = request
        return make
    return lambda key: request


def _caller_sender(client: Any, caller: Any, header: str) -> Sender:
    if isinstance(caller, Mapping):
        return sender_of(client, header=header, more=caller)
    return sender_of(caller, header=header)


def _selection(
    only: Collection[str] | str | None, skip: Collection[str] | str, require: Collection[str] | str
) -> _Selection:
    chosen = tuple(CASES) if only is None else _names("only", only)
    skipped = _names("skip", skip)
    left_out = {name: "left out by only=" for name in CASES if name not in chosen}
    left_out |= dict.fromkeys(skipped, "left out by skip=")
    required = tuple(CASES) if require == ALL else _names("require", require)
    return _Selection(left_out, required)


def _names(option: str, names: Collection[str] | str) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in given if name not in CASES]
    if unknown:
        raise ConfigurationError(
            f"{option}= names no case {', '.join(map(repr, unknown))}; known are {', '.join(CASES)}"
        )
    return given


# --- where a request can be held ------------------------------------------------------------------


def _gate_of(effects: Any, failpoints: Failpoints | None) -> Gate | None:
    gates: list[Gate] = []
    if isinstance(effects, EffectCounter):
        gates.append(effects)
    if failpoints is not None:
        gates.append(_StoreGate(failpoints))
    return _AnyGate(gates) if gates else None


class _StoreGate:
    """Holds a request before its outcome is stored."""

    def __init__(self, failpoints: Failpoints) -> None:
        self._failpoints = failpoints

    def arm(self) -> None:
        self._failpoints.clear()
        self._failpoints.hold(before="finish")

    def is_held(self) -> bool:
        return self._failpoints.is_held()

    def release(self) -> None:
        self._failpoints.clear()


class _AnyGate:
    """Several places; a request is held at the first one that it reaches."""

    def __init__(self, gates: list[Gate]) -> None:
        self._gates = gates

    def arm(self) -> None:
        for gate in self._gates:
            gate.arm()

    def is_held(self) -> bool:
        return any(gate.is_held() for gate in self._gates)

    def release(self) -> None:
        # The last place first: who is let go at an early one must not be held at a later one.
        for gate in reversed(self._gates):
            gate.release()
