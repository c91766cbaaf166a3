"""Prints what the doctor found, grouped by what it is about, the worst in full."""

from __future__ import annotations

from itertools import groupby

from rich.table import Table
from rich.text import Text

from oncekey.cli.output import Output, printable
from oncekey.doctor.diagnosis import Diagnosis
from oncekey.stores.checkup import Finding, Severity

_STYLES = {
    Severity.OK: "green",
    Severity.INFO: "cyan",
    Severity.WARNING: "yellow",
    Severity.BROKEN: "bold red",
}
_HEADINGS = {
    "store": "Store",
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "etcd": "etcd",
    "app": "App",
    "proxy": "Proxy",
}


def print_diagnosis(found: Diagnosis, out: Output, *, show_all: bool) -> None:
    """Prints one group per subject, and a last line that says how it stands."""
    for subject, findings in groupby(found.findings, key=lambda finding: finding.subject):
        heading = _HEADINGS.get(subject, subject)
        if out.console.is_terminal:
            out.console.print(_table(heading, list(findings), show_all))
        else:
            _print_lines(heading, list(findings), out, show_all)
        out.line("")
    out.line(_summary(found))


def _table(heading: str, findings: list[Finding], show_all: bool) -> Table:
    table = Table(title=heading, title_justify="left", show_header=False, expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for finding in findings:
        text = Text(printable(finding.what))
        for name, value in _explanation(finding, show_all):
            text.append(f"\n{name}: ", style="dim")
            text.append(printable(value))
        mark = Text(finding.severity, style=_STYLES[finding.severity])
        table.add_row(mark, Text(_name(finding)), text)
    return table


def _print_lines(heading: str, findings: list[Finding], out: Output, show_all: bool) -> None:
    out.line(heading)
    width = max(len(_name(finding)) for finding in findings)
    for finding in findings:
        out.line(f"  {finding.severity:<7}  {_name(finding):<{width}}  {finding.what}")
        for name, value in _explanation(finding, show_all):
            out.line(f"{'':11}{name}: {value}")


def _name(finding: Finding) -> str:
    return finding.check.partition(".")[2]


def _explanation(finding: Finding, show_all: bool) -> list[tuple[str, str]]:
    is_problem = finding.severity.rank >= Severity.WARNING.rank
    explained = []
    if is_problem or show_all:
        explained.append(("why", finding.why))
    if finding.mend and (is_problem or show_all or finding.severity is Severity.INFO):
        explained.append(("mend", finding.mend))
    return explained


def _summary(found: Diagnosis) -> str:
    counts = {severity: found.count(severity) for severity in Severity}
    if found.worst.rank < Severity.WARNING.rank:
        ok, info = counts[Severity.OK], counts[Severity.INFO]
        return f"nothing wrong: {ok} checks are ok, {info} to know of"
    broken, warnings = counts[Severity.BROKEN], counts[Severity.WARNING]
    return f"{broken} broken, {warnings} to look at, {counts[Severity.OK]} ok"
