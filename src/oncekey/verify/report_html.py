"""A verification as one HTML page for people: nothing is loaded from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from oncekey.http.missing_dependency import needs
from oncekey.verify.exchange_chart import (
    KINDS,
    ROW,
    WIDTH,
    Drawing,
    Share,
    draw,
    largest_round,
    shares,
)
from oncekey.verify.remedies import remedy
from oncekey.verify.shown_exchange import ShownEntry, story
from oncekey.verify.target import Variant
from oncekey.verify.verdict import Fault, Guarantee, Status, Verdict
from oncekey.verify.verification import ProbeRecord, Verification

with needs("verify"):
    import jinja2

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("oncekey.verify"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# The worst first, as somebody reads it who has one minute.
_ORDER = (Status.VIOLATED, Status.HOLDS, Status.NOT_OBSERVABLE)
_CLASSES = {Status.VIOLATED: "bad", Status.HOLDS: "good", Status.NOT_OBSERVABLE: "open"}


@dataclass(frozen=True, slots=True)
class ViolationPart:
    """One violation as the page has it."""

    fault: Fault
    what: str
    mend: str
    entries: list[ShownEntry]
    drawing: Drawing


@dataclass(frozen=True, slots=True)
class GuaranteePart:
    """One guarantee as the page has it."""

    verdict: Verdict
    css: str
    shares: list[Share]
    requests: int
    seconds: float
    violations: list[ViolationPart]


def html_report(verification: Verification) -> str:
    """Return the page."""
    target = verification.target
    template = target.variants[Variant.MAIN]
    parts = [_part(record, verification) for record in verification.records]
    parts.sort(key=lambda part: _ORDER.index(part.verdict.status))
    return _ENVIRONMENT.get_template("report.html").render(
        method=template.method,
        url=f"{target.origin}{template.path}",
        verification=verification,
        effects="not counted" if target.effects is None else target.effects.describe(),
        headline=headline(verification),
        tone=_tone(verification),
        counts=[(status.value, _CLASSES[status], verification.count(status)) for status in _ORDER],
        parts=parts,
        concurrency=_concurrency(verification),
        kinds=KINDS,
        seen_kinds=[
            kind for kind in KINDS if any(kind == s.kind for part in parts for s in part.shares)
        ],
        width=WIDTH,
        row=ROW,
    )


def headline(verification: Verification) -> str:
    """Return in one sentence how the API stands."""
    violated = verification.count(Status.VIOLATED)
    held = verification.count(Status.HOLDS)
    unseen = verification.count(Status.NOT_OBSERVABLE)
    if violated:
        return f"Not safe to retry: {_of(violated, 'guarantee')} violated"
    if not held:
        return "Nothing could be observed"
    if unseen:
        return f"{_of(held, 'guarantee')} seen to hold, {unseen} not observable"
    every = "the one guarantee holds" if held == 1 else f"all {held} guarantees hold"
    return f"Safe to retry, as far as was seen: {every}"


def _of(count: int, noun: str) -> str:
    return f"{count} {noun} is" if count == 1 else f"{count} {noun}s are"


def _tone(verification: Verification) -> str:
    if verification.is_violated:
        return "bad"
    return "good" if verification.count(Status.HOLDS) else "open"


def _part(record: ProbeRecord, verification: Verification) -> GuaranteePart:
    verdict = record.verdict
    origin = str(verification.target.origin)
    return GuaranteePart(
        verdict=verdict,
        css=_CLASSES[verdict.status],
        shares=shares(record.exchanges, verification.profile),
        requests=len(record.exchanges),
        seconds=record.seconds,
        violations=[
            ViolationPart(
                fault=violation.fault,
                what=violation.what,
                mend=remedy(violation.fault),
                entries=story(violation.exchanges, origin),
                drawing=draw(violation.exchanges, verification.profile),
            )
            for violation in verdict.violations
        ],
    )


def _concurrency(verification: Verification) -> Drawing | None:
    """The largest round of duplicates, to be drawn on top; a violation has its own drawing."""
    for record in verification.records:
        verdict = record.verdict
        if verdict.guarantee is Guarantee.CONCURRENT_DUPLICATES and not verdict.violations:
            largest = largest_round(record.exchanges)
            return draw(largest, verification.profile) if largest else None
    return None
