"""`oncekey doctor`: it prints what was found, grouped by what it is about, the worst in full."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import click

from oncekey.cli.command_input import duration, import_object, json_option, url_argument
from oncekey.cli.output import ExitCode, Output, UsageProblem, printable
from oncekey.cli.password_redaction import redact_url
from oncekey.cli.store_access import refuse_memory
from oncekey.core.policy import KEEP_MAX_US
from oncekey.doctor.diagnosis import Diagnosis, diagnose
from oncekey.doctor.observed_checks import RETRY_HORIZON_DEFAULT
from oncekey.stores.inspection import Finding, Severity

if TYPE_CHECKING:
    from rich.table import Table

_HORIZON_MIN_US = 1_000_000
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
    "redis": "Redis and Valkey",
    "etcd": "etcd",
    "app": "App",
    "proxy": "Proxy",
}


@click.command()
@url_argument
@click.option("--app", "app_name", metavar="MODULE:APP", help="Also check this app or consumer.")
@click.option(
    "--proxy-config",
    "proxy_files",
    metavar="FILE",
    multiple=True,
    help="Also check this configuration of nginx, HAProxy, Envoy, Istio or Traefik; repeatable.",
)
@click.option(
    "--retry-horizon",
    metavar="DURATION",
    default=RETRY_HORIZON_DEFAULT,
    show_default=True,
    callback=duration(_HORIZON_MIN_US, KEEP_MAX_US),
    help="The longest time after which a client may still retry.",
)
@click.option("--strict", is_flag=True, help="Exit with 4 for a warning too.")
@click.option("--all", "show_all", is_flag=True, help="Also print why, where nothing is wrong.")
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    url: str,
    app_name: str | None,
    proxy_files: tuple[str, ...],
    retry_horizon: int,
    strict: bool,
    show_all: bool,
    as_json: bool,
) -> None:
    """Find what silently breaks the guarantee.

    Checks the store behind the URL: its settings, standbys, pooler or file system, its tables and
    indexes, vacuum and sweeper, and what its newest records tell of lease and keep. With --app
    also the app's guards, callers and options, or whether a consumer of a queue may begin, with
    --proxy-config what a proxy in front of it does to a POST. Each finding says what was found, why
    it matters and how to mend it.

    It reads only, within seconds, and no large table as a whole. The store is neither created nor
    migrated; importing the app runs its module. Nothing that was not checked is reported as good.
    The exit code is 4 if something is broken.

    \b
    Examples:
      oncekey doctor "postgresql://app@db/shop?schema=oncekey"
      oncekey doctor sqlite:///payments.db --app shop.main:app --strict
      oncekey doctor sqlite:///payments.db --app shop.orders:consumer
      oncekey doctor "$DATABASE_URL" --app shop.main:app --proxy-config nginx.conf --json
    """
    refuse_memory(url)
    out = Output(as_json=as_json)
    with out.progress("checking"):
        found = _diagnose(url, app_name, proxy_files, retry_horizon)
    if as_json:
        healthy = found.is_healthy(strict=strict)
        out.data({"store": redact_url(url), "healthy": healthy, **found.as_data()})
    else:
        _print_diagnosis(found, out, show_all=show_all)
    if not found.is_healthy(strict=strict):
        context.exit(ExitCode.UNHEALTHY)


def _diagnose(
    url: str, app_name: str | None, proxy_files: tuple[str, ...], horizon: int
) -> Diagnosis:
    try:
        return diagnose(
            url,
            load_app=None if app_name is None else partial(import_object, app_name),
            proxy_files=proxy_files,
            retry_horizon=timedelta(microseconds=horizon),
        )
    except ImportError as error:
        raise UsageProblem(f"{error}; install oncekey[http]") from error


# --- the report -----------------------------------------------------------------------------------


def _print_diagnosis(found: Diagnosis, out: Output, *, show_all: bool) -> None:
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
    from rich.table import Table
    from rich.text import Text

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
