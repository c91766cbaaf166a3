"""The report of a check: for each case whether its guarantee holds, and if not, why.

A case that could not be checked is in the report with the reason and with what would make it
checkable; it is never counted as passed. Knows neither clients nor stores.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

# Case -> the guarantee that it is about, in the order in which they are checked.
GUARANTEES: Final = {
    "completed": "A retry of a finished request gets the first answer again, and nothing runs.",
    "concurrent": "Of requests with one key that arrive together, one is carried out.",
    "lost_response": "A client that got no response can send its request again.",
    "other_body": "A key that was used for one request is refused for another one.",
    "other_caller": "The same key of another caller is another key.",
    "rejected_caller": "Who is not let in gets no stored answer either.",
    "crash": "After a crash between any two calls of the store a retry never runs a second time.",
}
CASES: Final = tuple(GUARANTEES)


class CaseStatus(enum.Enum):
    """What became of a case."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Violation:
    """Why a guarantee does not hold: what was found, the exchanges in their order, each as what was
    sent and what came back, and what to do about it."""

    found: str
    exchanges: tuple[tuple[str, str], ...]
    advice: str

    def lines(self) -> list[str]:
        lines = [f"found:      {self.found}"]
        for (sent, answer), same in groupby(self.exchanges):
            count = len(list(same))
            lines.append(f"sent:       {f'{count} x ' if count > 1 else ''}{sent}")
            lines.append(f"came back:  {answer}")
        return [*lines, f"what to do: {self.advice}"]


@dataclass(frozen=True)
class CaseResult:
    """What became of one case. `detail` says what was done, or why nothing could be."""

    case: str
    status: CaseStatus
    detail: str
    violation: Violation | None = None


class IdempotencyReport:
    """What `assert_idempotent` returns: the result of every case, those left out included."""

    def __init__(self, results: Sequence[CaseResult]) -> None:
        self.results = tuple(results)

    def _named(self, status: CaseStatus) -> dict[str, str]:
        return {result.case: result.detail for result in self.results if result.status is status}

    @property
    def holds(self) -> dict[str, str]:
        """The cases whose guarantee holds, and what was done to see it."""
        return self._named(CaseStatus.HOLDS)

    @property
    def violated(self) -> dict[str, str]:
        """The cases whose guarantee does not hold, and what was found."""
        return self._named(CaseStatus.VIOLATED)

    @property
    def not_checked(self) -> dict[str, str]:
        """The cases that were not checked, and why."""
        return self._named(CaseStatus.NOT_CHECKED)

    def __str__(self) -> str:
        lines = [
            f"{result.status.value:<11}  {result.case}: {result.detail}" for result in self.results
        ]
        return "\n".join(lines)


class NotIdempotent(AssertionError):
    """Guarantees that do not hold, or that had to be checked and could not be. `report` has the
    result of every case."""

    def __init__(self, report: IdempotencyReport, required: Sequence[str] = ()) -> None:
        super().__init__(_message(report, required))
        self.report = report


def _message(report: IdempotencyReport, required: Sequence[str]) -> str:
    missing = [case for case in required if case in report.not_checked]
    broken = [result for result in report.results if result.violation is not None]
    lines: list[str] = []
    if broken:
        what = "1 guarantee does" if len(broken) == 1 else f"{len(broken)} guarantees do"
        lines.append(f"{what} not hold:")
    for result in broken:
        assert result.violation is not None
        lines += ["", f"{result.case}: {GUARANTEES[result.case]}"]
        lines += [f"  {line}" for line in result.violation.lines()]
    if missing:
        lines += ["" for _ in lines[:1]]
        lines.append("required, but not checked:")
        lines += [f"  {case}: {report.not_checked[case]}" for case in missing]
    lines += ["", "all cases:", *(f"  {line}" for line in str(report).splitlines())]
    return "\n".join(lines)
