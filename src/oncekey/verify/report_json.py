"""A verification as one JSON document, for scripts; its members do not change within a format."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from oncekey.verify.observability import how_to_observe
from oncekey.verify.remedies import remedy
from oncekey.verify.shown_exchange import story
from oncekey.verify.target import Target, Variant
from oncekey.verify.verdict import Status, Violation
from oncekey.verify.verification import ProbeRecord, Verification

FORMAT = 1


def json_report(verification: Verification) -> dict[str, Any]:
    """Return the document as plain data."""
    target = verification.target
    template = target.variants[Variant.MAIN]
    return {
        "format": FORMAT,
        "url": str(target.origin) + template.path,
        "method": template.method,
        "profile": verification.profile.name,
        "effects": None if target.effects is None else target.effects.describe(),
        "began_at": verification.began_at.isoformat(timespec="milliseconds"),
        "seconds": round(verification.seconds, 3),
        "requests": verification.requests,
        "violated": verification.is_violated,
        "counts": {status.value: verification.count(status) for status in Status},
        "guarantees": [_guarantee(record, target) for record in verification.records],
    }


def _guarantee(record: ProbeRecord, target: Target) -> dict[str, Any]:
    verdict, origin = record.verdict, str(target.origin)
    return {
        "guarantee": verdict.guarantee.slug,
        "title": verdict.guarantee.title,
        "status": verdict.status.value,
        "summary": verdict.summary,
        "n": verdict.n,
        "window": verdict.window,
        "advice": how_to_observe(verdict, target),
        "unseen": list(verdict.unseen),
        "requests": len(record.exchanges),
        "seconds": round(record.seconds, 3),
        "violations": [_violation(violation, origin) for violation in verdict.violations],
    }


def _violation(violation: Violation, origin: str) -> dict[str, Any]:
    return {
        "fault": violation.fault.slug,
        "title": violation.fault.title,
        "cause": violation.fault.cause,
        "mend": remedy(violation.fault),
        "what": violation.what,
        "exchanges": [asdict(entry) for entry in story(violation.exchanges, origin)],
    }
