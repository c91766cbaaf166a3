"""Probes that use a key where it does not belong: on another path, by another caller, by nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import (
    BESIDE_THE_POINT,
    HOW_TO_BE_ANSWERED,
    HOW_TO_SEE_RUNS,
    KnownOutcome,
    answer,
    confirmed,
    effects_of,
    failed_server,
    is_busy,
    is_marked,
    is_refusal,
    is_server_failure,
    known_outcome,
    other_ids,
    same_body,
    same_content,
    same_ids,
)
from oncekey.verify.recorded_exchange import Exchange, WireRequest
from oncekey.verify.target import Caller, Variant
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    holds,
    not_observable,
    violated,
)

REFUSED_CREDENTIALS = frozenset({401, 403})
# So many characters at the end of a credential are replaced to spoil it: in most tokens they are
# a part of the signature or of the secret.
SPOILED_CHARACTERS = 8

HOW_TO_GIVE_ANOTHER_PATH = (
    "Give a valid request to another path that takes keys too: --variant other-path=/PATH, or "
    "[variants.other-path]."
)
HOW_TO_GIVE_ANOTHER_CALLER = (
    "Give a second caller with rights of its own, such as a token of another account: "
    "--other-caller HEADER, or [callers.other]."
)
HOW_TO_GIVE_CREDENTIALS = (
    "Give the headers that say who calls, and some that must be refused: --caller and "
    "--bad-caller HEADER, or [callers.main] and [callers.bad]."
)


class OtherPath:
    """Uses the key of a finished operation on another path."""

    guarantee: ClassVar = Guarantee.OTHER_PATH
    sends: ClassVar = (
        "a request and its retry, a request to another path under the same key, and one there "
        "under a key of its own: 4 requests"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        """The other path may refuse the key or take it as its own; it must not replay."""
        if not run.has(Variant.OTHER_PATH):
            return not_observable(
                self.guarantee, "no other path is known", HOW_TO_GIVE_ANOTHER_PATH
            )
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        known = await known_outcome(run, self.guarantee)
        if isinstance(known, Verdict):
            return known
        request = known.operation.request(variant=Variant.OTHER_PATH)
        if (request.method, request.path) == (known.request.method, known.request.path):
            return not_observable(
                self.guarantee, "the other path is the same one", HOW_TO_GIVE_ANOTHER_PATH
            )
        other = await answer(run, request, "another path, same key")
        if _is_other_response(run, known, other):
            return _path_holds(f"handled it as an operation of its own ({other.outcome()})")
        control = await _under_new_key(run, request, "another path, under a key of its own")
        if is_server_failure(other) and control.is_success:
            return violated(self.guarantee, [failed_server(other, known.shown)], n=1)
        if not control.is_success or not (other.is_success or is_refusal(other)):
            return not_observable(
                self.guarantee,
                f"the other path answers {control.outcome()} to a key of its own and "
                f"{other.outcome()} to this one",
                HOW_TO_GIVE_ANOTHER_PATH,
            )
        if not other.is_success:
            return _path_holds(f"refused it ({other.outcome()})")
        if _is_replay(run, known, other, control):
            what = f"another path got the first one's response ({other.outcome()})"
            shown = (*known.shown, other, control)
            violation = Violation(Fault.PATH_NOT_COMPARED, what, shown)
            return violated(self.guarantee, [violation], n=1)
        return not_observable(
            self.guarantee, "both paths answer alike, whatever they do", HOW_TO_SEE_RUNS
        )


def _path_holds(what: str) -> Verdict:
    return holds(
        Guarantee.OTHER_PATH,
        f"the other path {what}",
        n=1,
        window="after the first request was answered and replayed",
    )


class OtherCaller:
    """Uses the key of one caller as another."""

    guarantee: ClassVar = Guarantee.OTHER_CALLER
    sends: ClassVar = (
        "a request and its retry, the same by the other caller under the same key and under "
        "another one, and the first caller's retry again: 5 requests"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        """The other caller's request must be run, and must leave the first one's outcome alone."""
        if run.target.other_caller is None:
            return not_observable(
                self.guarantee, "there is only one caller", HOW_TO_GIVE_ANOTHER_CALLER
            )
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        known = await known_outcome(run, self.guarantee)
        if isinstance(known, Verdict):
            return known
        request = known.operation.request(caller=run.target.other_caller)
        before = await effects_of(run, known.operation)
        other = await answer(run, request, "another caller, same key")
        after = await effects_of(run, known.operation)
        if _is_other_response(run, known, other):
            return await self._first_again(run, known, other)
        control = await _under_new_key(run, request, "another caller, under a key of its own")
        shown = (*known.shown, other)
        if is_server_failure(other) and control.is_success:
            return violated(self.guarantee, [failed_server(other, known.shown)], n=1)
        if not control.is_success or is_busy(other):
            return not_observable(
                self.guarantee,
                f"the other caller's request is answered with {control.outcome()} also under a "
                f"key of its own",
                HOW_TO_GIVE_ANOTHER_CALLER + " It must be allowed to send the same request.",
            )
        if not other.is_success:
            what = (
                f"another caller was told {other.outcome()} because of the first caller's key; "
                f"under a key of its own the same request gets {control.outcome()}"
            )
        elif _is_replay(run, known, other, control):
            what = f"another caller got the first caller's response ({other.outcome()})"
        elif before is not None and after is not None and after > before:
            return await self._first_again(run, known, other)
        else:
            return not_observable(
                self.guarantee, "both callers get the same bytes in any case", HOW_TO_SEE_RUNS
            )
        violation = Violation(Fault.UNSCOPED, what, (*shown, control))
        return violated(self.guarantee, [violation], n=1)

    async def _first_again(self, run: ProbeRun, known: KnownOutcome, other: Exchange) -> Verdict:
        """See whether the first caller still has its outcome. Effects cannot tell: the other
        caller's may be among them, and may be counted late."""
        later = await answer(run, known.request, "the first caller again")
        if is_busy(later) or later.status in BESIDE_THE_POINT:
            return not_observable(
                self.guarantee,
                f"the first caller is answered with {later.outcome()}",
                HOW_TO_BE_ANSWERED,
            )
        if later.is_success and not other_ids(known.first, later):
            return holds(
                self.guarantee,
                f"the other caller's request was run ({other.outcome()}), and the first caller "
                f"still gets its own outcome",
                n=2,
                window="after the first request was answered and replayed",
            )
        what = (
            f"after another caller used the same key, the first caller does not get its outcome "
            f"any more, but {later.outcome()}"
        )
        violation = Violation(Fault.UNSCOPED, what, (*known.shown, other, later))
        return violated(self.guarantee, [violation], n=1)


class BadCredentials:
    """Uses the key of a finished operation with credentials that must be refused."""

    guarantee: ClassVar = Guarantee.BAD_CREDENTIALS
    sends: ClassVar = (
        "a request and its retry, then the same, and another body, with bad, spoiled and without "
        "credentials, each under the used key and under a new one: up to 14 requests"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        """Strangers must get the same refusal for a used key as for one that nobody used."""
        if not run.target.caller.headers and run.target.bad_caller is None:
            return not_observable(
                self.guarantee, "requests are sent without credentials", HOW_TO_GIVE_CREDENTIALS
            )
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        known = await known_outcome(run, self.guarantee)
        if isinstance(known, Verdict):
            return known
        refused: list[str] = []
        accepted: list[str] = []
        for stranger in _strangers(run):
            request = known.operation.request(caller=stranger)
            control = await _under_new_key(run, request, f"{stranger.name}, unused key")
            if not is_refused_credentials(control):
                accepted.append(f"{stranger.name}: {control.outcome()} under an unused key")
                continue
            violation = await _told_a_stranger(run, known, stranger, control)
            if violation is not None:
                return violated(self.guarantee, [violation], n=len(refused) + 1)
            refused.append(f"{stranger.name} {control.outcome()}")
        if not refused:
            return not_observable(
                self.guarantee,
                f"no credentials are refused ({'; '.join(accepted)})",
                HOW_TO_GIVE_CREDENTIALS,
            )
        return holds(
            self.guarantee,
            f"strangers are refused, whether the key was used or not: {', '.join(refused)}",
            n=len(refused),
            window="after the first request was answered and replayed",
            unseen=tuple(accepted),
        )


async def _told_a_stranger(
    run: ProbeRun, known: KnownOutcome, stranger: Caller, control: Exchange
) -> Violation | None:
    """Return the violation if a stranger learns more from a used key than from an unused one."""
    as_stranger = known.operation.request(caller=stranger)
    tries = [("used key", as_stranger, control)]
    other = run.other_request(known.operation)
    if other is not None:
        # An API may remember a stranger's own requests, refusals included. So another body is
        # compared with another body under the key that only this stranger has used.
        disguised = replace(other, headers=as_stranger.headers, secrets=as_stranger.secrets)
        lines = control.request.header_lines(run.target.key_header)
        unused = disguised.with_lines(run.target.key_header, lines)
        answered = await answer(run, unused, f"{stranger.name}, its own key, another body")
        tries.append(("used key, another body", disguised, answered))
    telling = run.profile.mismatch | run.profile.in_flight
    for note, request, compared in tries:
        told = await answer(run, request, f"{stranger.name}, {note}")
        shown = (*known.shown, compared, told)
        if told.is_success:
            got = "the stored response" if same_body(known.first, told) else "a success"
            what = f"{stranger.name} got {got} ({told.outcome()}) for a key that was used"
            return Violation(Fault.REPLAY_BEFORE_AUTH, what, shown)
        if told.status in telling and told.status != compared.status:
            what = (
                f"{stranger.name} learned that the key was used: {told.outcome()}, and "
                f"{compared.outcome()} under an unused key"
            )
            return Violation(Fault.REPLAY_BEFORE_AUTH, what, shown)
        if is_server_failure(told):
            return failed_server(told, (*known.shown, compared))
    return None


def is_refused_credentials(exchange: Exchange) -> bool:
    """True if the caller was refused; some APIs call missing or malformed credentials bad input."""
    return exchange.status in REFUSED_CREDENTIALS or is_refusal(exchange)


def _strangers(run: ProbeRun) -> list[Caller]:
    """Return callers that must be refused: the bad one, one with spoiled credentials, nobody."""
    target = run.target
    strangers = [] if target.bad_caller is None else [target.bad_caller]
    if target.caller.headers:
        spoiled = tuple((name, _spoiled(text)) for name, text in target.caller.headers)
        strangers += [Caller("a caller with spoiled credentials", spoiled), Caller("nobody")]
    return strangers


def _spoiled(text: str) -> str:
    """Return a credential with its last characters replaced; its form stays."""
    count = min(SPOILED_CHARACTERS, len(text) // 2)
    kept, end = text[: len(text) - count], text[len(text) - count :]
    return kept + "".join(_replaced(character) for character in end)


def _replaced(character: str) -> str:
    if character.isdigit():
        return "1" if character == "0" else "0"
    if not character.isalpha():
        return character
    lower = "b" if character.lower() == "a" else "a"
    return lower.upper() if character.isupper() else lower


async def _under_new_key(run: ProbeRun, request: WireRequest, note: str) -> Exchange:
    """Send the same request under a key that was never used: the key is all that differs."""
    key = run.target.key_text((await run.operation()).key).encode("ascii")
    return await answer(run, request.with_lines(run.target.key_header, [key]), note)


def _is_other_response(run: ProbeRun, known: KnownOutcome, other: Exchange) -> bool:
    """True if a request succeeded with a response of its own: nothing in it is the first one's."""
    if not other.is_success or is_marked(run, other):
        return False
    return not same_content(known.first, other) and not same_ids(known.first, other)


def _is_replay(run: ProbeRun, known: KnownOutcome, other: Exchange, control: Exchange) -> bool:
    """True if it is certain that another request got the first one's response: the response is
    marked, or has its content or its ids although a run of its own gives others."""
    if not other.is_success:
        return False
    if is_marked(run, other):
        return True
    if same_content(known.first, other) and not same_content(control, other):
        return True
    return same_ids(known.first, other) and other_ids(control, other)


PROBES = (OtherPath(), OtherCaller(), BadCredentials())
