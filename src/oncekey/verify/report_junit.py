"""A verification as a JUnit file, which continuous integration shows test by test.

A guarantee is a test: violated is a failure, not observable is skipped, or a failure if strict.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from oncekey.verify.observability import how_to_observe
from oncekey.verify.remedies import remedy
from oncekey.verify.shown_exchange import ShownEntry, story
from oncekey.verify.target import Target, Variant
from oncekey.verify.verdict import Status, Verdict
from oncekey.verify.verification import ProbeRecord, Verification

# XML 1.0 has no way to write these, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(verification: Verification, *, strict: bool = False) -> str:
    """Return the text of the file."""
    origin = str(verification.target.origin)
    template = verification.target.variants[Variant.MAIN]
    unseen = verification.count(Status.NOT_OBSERVABLE)
    violated = verification.count(Status.VIOLATED)
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"oncekey verify {template.method} {origin}{template.path}"),
        tests=str(len(verification.records)),
        failures=str(violated + (unseen if strict else 0)),
        errors="0",
        skipped=str(0 if strict else unseen),
        time=f"{verification.seconds:.3f}",
        timestamp=verification.began_at.isoformat(timespec="seconds"),
    )
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"profile": verification.profile.name, "requests": str(verification.requests)}
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", name=name, value=value)
    for record in verification.records:
        suite.append(_case(record, verification.target, strict))
    return _document(suite)


def junit_without_verdicts(target: Target, reason: str) -> str:
    """Return the file of a verification that could not begin: one error.

    Without it the file of an earlier run would still be there, and say that all is well.
    """
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
    suite = ElementTree.Element(
        "testsuite", {"name": _clean(f"oncekey verify {target.origin}"), **counts}
    )
    case = ElementTree.SubElement(
        suite, "testcase", classname="oncekey.verify", name="first-request"
    )
    ElementTree.SubElement(case, "error", type="not-begun", message=_clean(reason))
    return _document(suite)


def _document(suite: ElementTree.Element) -> str:
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(record: ProbeRecord, target: Target, strict: bool) -> ElementTree.Element:
    verdict, origin = record.verdict, str(target.origin)
    case = ElementTree.Element(
        "testcase",
        classname="oncekey.verify",
        name=verdict.guarantee.slug,
        time=f"{record.seconds:.3f}",
    )
    if verdict.status is Status.VIOLATED:
        failure = ElementTree.SubElement(
            case,
            "failure",
            type=verdict.violations[0].fault.slug,
            message=_clean(verdict.summary),
        )
        failure.text = _clean(_failure_text(verdict, origin))
    elif verdict.status is Status.NOT_OBSERVABLE:
        message = _clean(f"not observable: {verdict.summary}")
        if strict:
            failure = ElementTree.SubElement(case, "failure", type="not-observable")
            failure.set("message", message)
            failure.text = _clean(how_to_observe(verdict, target))
        else:
            message = f"{message}. {how_to_observe(verdict, target)}"
            ElementTree.SubElement(case, "skipped", message=_clean(message))
    else:
        output = ElementTree.SubElement(case, "system-out")
        output.text = _clean(f"{verdict.summary}\nn = {verdict.n}; {verdict.window}")
    return case


def _failure_text(verdict: Verdict, origin: str) -> str:
    parts = []
    for violation in verdict.violations:
        fault = violation.fault
        parts.append(f"{fault.title}: {violation.what}")
        parts.append(f"cause: {fault.cause}")
        parts.append(f"mend: {remedy(fault)}")
        parts += [line for entry in story(violation.exchanges, origin) for line in _lines(entry)]
        parts.append("")
    return "\n".join(parts)


def _lines(entry: ShownEntry) -> list[str]:
    times = f"  # {entry.count} times together" if entry.together else ""
    note = f"# {entry.note}" if entry.note else "#"
    answers = []
    for answer in entry.answers:
        share = f" ({answer.count} of {entry.count})" if entry.together else ""
        answers.append(f"# -> {answer.outcome}{share} {answer.body}".rstrip())
    return [note, f"{entry.curl}{times}", *answers]


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
