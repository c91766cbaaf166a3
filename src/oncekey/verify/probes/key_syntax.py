"""Probes of the key itself: its two forms, keys that are malformed or missing, long ones.

A key that is accepted is not a fault by itself. What counts is what it means afterwards: whether
one key stands for two operations, or two keys for one.
"""

from __future__ import annotations

from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.key_findings import Findings, is_one_key, is_said, send_key
from oncekey.verify.probes.key_lines import check_line_twice, check_two_lines
from oncekey.verify.probes.known_outcome import (
    HOW_TO_BE_ANSWERED,
    SEQUENCE,
    KnownOutcome,
    answer,
    confirmed,
    failed_server,
    had_effect,
    is_busy,
    is_refusal,
    is_server_failure,
    known_outcome,
    later_answer,
    same_body,
)
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    holds,
    not_observable,
    violated,
)

# Where a profile names no longest key, this length is tried, and one character more.
LONG_KEY_CHARACTERS = 255


class KeySyntax:
    """Sends keys in both forms, in two lines, empty, long, in mixed case, and beyond ASCII."""

    guarantee: ClassVar = Guarantee.KEY_SYNTAX
    sends: ClassVar = (
        "keys quoted and bare, in two lines, empty, of 255 and 256 characters, in mixed case and "
        "not in ASCII, with retries of those that are accepted: up to 34 requests"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        """Refused keys are fine; of accepted ones it is seen what they mean."""
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        known = await known_outcome(run, self.guarantee)
        if isinstance(known, Verdict):
            return known
        findings = Findings()
        if run.profile.quoted_equals_bare:
            await _check_forms(run, known, findings)
        await check_two_lines(run, findings)
        if not findings.violations:
            await check_line_twice(run, findings)
        await _check_empty(run, known, findings)
        await _check_long(run, known, findings)
        await _check_case(run, known, findings)
        await _check_not_ascii(run, findings)
        if findings.violations:
            return violated(self.guarantee, findings.violations, n=findings.count, window=SEQUENCE)
        if not findings.count:
            return not_observable(
                self.guarantee,
                f"nothing can be said about {', '.join(findings.unseen)}",
                HOW_TO_BE_ANSWERED,
            )
        parts = [f"refused: {', '.join(findings.refused)}"] if findings.refused else []
        parts += (
            [f"accepted, with one meaning: {', '.join(findings.fine)}"] if findings.fine else []
        )
        return holds(
            self.guarantee,
            "; ".join(parts),
            n=findings.count,
            window=SEQUENCE,
            unseen=tuple(findings.unseen),
        )


class MissingKey:
    """Sends a valid request without its key."""

    guarantee: ClassVar = Guarantee.MISSING_KEY
    sends: ClassVar = "a request and its retry, and the same request without a key: 3 requests"

    async def run(self, run: ProbeRun) -> Verdict:
        """It must be refused with a status of the profile."""
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        known = await known_outcome(run, self.guarantee)
        if isinstance(known, Verdict):
            return known
        operation = await run.operation()
        told = await send_key(run, operation, [], "no key")
        shown = (*known.shown, told)
        if is_server_failure(told):
            return violated(self.guarantee, [failed_server(told, known.shown)], n=1)
        if told.is_success:
            what = f"a request without a key was run ({told.outcome()})"
            fault = Fault.KEY_NOT_REQUIRED
        elif not is_refusal(told):
            return not_observable(
                self.guarantee,
                f"a request without a key was answered with {told.outcome()}",
                HOW_TO_BE_ANSWERED,
            )
        elif await had_effect(run, operation):
            what = f"a request without a key is refused ({told.outcome()}), and had its effect"
            fault = Fault.REFUSED_BUT_RUN
        elif told.status in run.profile.missing_key:
            return holds(
                self.guarantee,
                f"a request without a key is refused ({told.outcome()}); with one it is accepted",
                n=1,
                window=SEQUENCE,
            )
        else:
            wanted = " or ".join(map(str, sorted(run.profile.missing_key)))
            what = (
                f"a request without a key is refused with {told.outcome()}, where the profile "
                f"says {wanted}"
            )
            fault = Fault.WRONG_STATUS
        return violated(self.guarantee, [Violation(fault, what, shown)], n=1)


async def _check_forms(run: ProbeRun, known: KnownOutcome, findings: Findings) -> None:
    """ "k" and k must be one key. A form that is refused is none of the API's."""
    key = known.operation.key
    text, name = (key, "bare") if run.target.quoted_key else (f'"{key}"', "quoted")
    request = known.request.with_lines(run.target.key_header, [text.encode("ascii")])
    note = f"the same key, {name}"
    later = await later_answer(run, known.operation, known.first, request, note)
    told = later.exchange
    if await is_said(run, told, known.shown, f"the {name} form", findings):
        return
    if later.ran_again:
        what = f"the same key in its {name} form was run as another one: {later.ran_again}"
        findings.add(Fault.KEY_FORMS_DIFFER, what, *known.shown, told)
    else:
        findings.fine.append(f"the {name} form of the same key")


async def _check_empty(run: ProbeRun, known: KnownOutcome, findings: Findings) -> None:
    """An empty key is refused, or is no key; as a key it would be everybody's."""
    other = run.other_request(known.operation)
    mismatch = None if other is None else await answer(run, other, "another body, same key")
    operation = await run.operation()
    first = await send_key(run, operation, [b""], "an empty key")
    is_alike = mismatch is not None and mismatch.status == first.status
    if mismatch is not None and is_alike and is_refusal(first) and same_body(mismatch, first):
        what = f"an empty key is one that was used before: {first.outcome()}, as for a mismatch"
        findings.add(Fault.KEY_ACCEPTED, what, *known.shown, mismatch, first)
        return
    if await is_said(run, first, (), "an empty key", findings, operation):
        return
    second = await send_key(run, await run.operation(), [b""], "an empty key, another request")
    is_one = is_one_key(run, first, second, known.first)
    if is_busy(second) or is_one is None:
        findings.unseen.append("what an empty key means")
    elif is_one:
        what = f"an empty key is used as one: another request with it got {second.outcome()}"
        findings.add(Fault.KEY_ACCEPTED, what, first, second)
    elif run.profile.missing_key:
        missing = await send_key(run, await run.operation(), [], "no key")
        if is_refusal(missing):
            what = (
                f"requests with an empty key are run without protection ({first.outcome()}), "
                f"although one without a key is refused ({missing.outcome()})"
            )
            findings.add(Fault.KEY_ACCEPTED, what, first, second, missing)
        else:
            findings.fine.append("an empty key, which is no key")
    else:
        findings.fine.append("an empty key, which is no key")


async def _check_long(run: ProbeRun, known: KnownOutcome, findings: Findings) -> None:
    """The longest key is accepted; a longer one is refused, or is at least a key of its own."""
    longest = run.profile.key_max or LONG_KEY_CHARACTERS
    operation = await run.operation()
    name = f"a key of {longest} characters"
    long_key = _long_key(operation, longest)
    first = await _send_text(run, operation, long_key, name)
    if run.profile.key_max is not None and is_refusal(first):
        what = f"{name} is refused with {first.outcome()}"
        findings.add(Fault.KEY_REFUSED, what, first)
        return
    if not await is_said(run, first, (), name, findings, operation) and await _is_own_key(
        run, known, findings, first, f"{long_key[:-1]}z", name
    ):
        findings.fine.append(name)
    name = f"a key of {longest + 1} characters"
    operation = await run.operation()
    long_key = _long_key(operation, longest + 1)
    first = await _send_text(run, operation, long_key, name)
    if await is_said(run, first, (), name, findings, operation):
        return
    if not await _is_own_key(run, known, findings, first, f"{long_key[:-1]}z", name):
        return
    if run.profile.key_max is not None:
        findings.add(Fault.KEY_ACCEPTED, f"{name} is accepted ({first.outcome()})", first)
    else:
        findings.fine.append(name)


async def _check_case(run: ProbeRun, known: KnownOutcome, findings: Findings) -> None:
    """Two keys that differ in case are two keys. They are no UUIDs, whose case means nothing."""
    operation = await run.operation()
    key, name = f"Key-{operation.key}", "a key in mixed case"
    first = await _send_text(run, operation, key, name)
    if await is_said(run, first, (), name, findings, operation):
        return
    fault = Fault.KEY_CASE_IGNORED
    if await _is_own_key(run, known, findings, first, key.swapcase(), name, fault):
        findings.fine.append(name)


async def _is_own_key(
    run: ProbeRun,
    known: KnownOutcome,
    findings: Findings,
    first: Exchange,
    other_key: str,
    name: str,
    fault: Fault = Fault.KEY_TRUNCATED,
) -> bool:
    """True if a key that is almost the same is another one; else it is noted what it is."""
    differs = "case" if fault is Fault.KEY_CASE_IGNORED else "its last character"
    note = f"{name}, another one that differs in {differs}"
    told = await _send_text(run, await run.operation(), other_key, note)
    is_one = is_one_key(run, first, told, known.first)
    if is_busy(told) or is_one is None:
        findings.unseen.append(f"what {name} means")
    elif is_one:
        what = f"{name}, and another one that differs in {differs}, are one key"
        findings.add(fault, f"{what}: {told.outcome()}", first, told)
    return is_one is False and not is_busy(told)


async def _send_text(run: ProbeRun, operation: Operation, key: str, note: str) -> Exchange:
    return await send_key(run, operation, [run.target.key_text(key).encode("ascii")], note)


async def _check_not_ascii(run: ProbeRun, findings: Findings) -> None:
    """A key with other characters than ASCII is malformed; what proxies make of it differs."""
    operation = await run.operation()
    key = run.target.key_text(f"clé-{operation.key}").encode()
    first = await send_key(run, operation, [key], "a key that is not ASCII")
    if await is_said(run, first, (), "a key that is not ASCII", findings, operation):
        return
    if run.profile.strict_key:
        what = f"a key that is not ASCII is accepted ({first.outcome()})"
        findings.add(Fault.KEY_ACCEPTED, what, first)
    else:
        findings.fine.append("a key that is not ASCII")


def _long_key(operation: Operation, length: int) -> str:
    return (operation.key + "-" + "x" * length)[:length]


PROBES = (KeySyntax(), MissingKey())
