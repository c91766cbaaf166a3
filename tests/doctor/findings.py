"""What a checkup found, in the form that tests compare."""

from __future__ import annotations

from collections.abc import Iterable

from oncekey.stores.inspection import Finding, Severity


def problems(findings: Iterable[Finding]) -> dict[str, str]:
    """The severity of every warning and of everything that is broken, by check."""
    return {
        finding.check: str(finding.severity)
        for finding in findings
        if finding.severity.rank >= Severity.WARNING.rank
    }


def by_check(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The findings by the name of their check, which occurs once."""
    found: dict[str, Finding] = {}
    for finding in findings:
        assert finding.check not in found, f"{finding.check} is reported twice"
        found[finding.check] = finding
    return found
