"""The demo in a terminal: its event loop, which a signal ends, where it runs, and the report of its
scenarios. What happened is judged by scenario_result.py, and only shown here.

This module needs the packages of `oncekey[demo]`.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from oncekey.cli.output import Output
from oncekey.cli.password_redaction import redact_url
from oncekey.demo.api.payments_app import OPERATION
from oncekey.demo.environment import Environment
from oncekey.demo.handlers import Handler
from oncekey.demo.scenario_result import CallerResult, ResponseKind, ScenarioResult, times
from oncekey.demo.scenario_runner import Report, play
from oncekey.demo.scenarios.scenarios import BY_NAME, SCENARIOS

T = TypeVar("T")
NAMES = tuple(BY_NAME)

_STYLES = {
    ResponseKind.RAN: "green",
    ResponseKind.REPLAYED: "cyan",
    ResponseKind.IN_FLIGHT: "yellow",
    ResponseKind.MISMATCH: "magenta",
    ResponseKind.DECLINED: "red",
    ResponseKind.FAILED: "red",
    ResponseKind.REFUSED: "red",
    ResponseKind.LOST: "red",
    ResponseKind.GAVE_UP: "red",
    ResponseKind.KILLED: "red",
    ResponseKind.READ: "dim",
}
# From this width on the responses fit beside the story; in a narrower window they go below it.
_WIDE = 110
_STORY_WIDTH = 44
_COMPARED_STORY_WIDTH = 36


def serve(folder: Path, out: Output, *, store: str | None, port: int | None, kept: bool) -> None:
    """Serves until SIGINT or SIGTERM; prints the address as soon as the servers are up."""

    async def serve_until_cancelled() -> None:
        async with Environment(folder, store_url=store, port=port) as environment:
            _print_address(environment, out, kept=kept)
            await asyncio.Event().wait()

    _run(serve_until_cancelled())


def play_all(
    folder: Path,
    *,
    store: str | None,
    port: int | None,
    kept: bool,
    only: Sequence[str],
    compare: bool,
    on_progress: Callable[[str], None],
) -> Report | None:
    """Starts everything, plays, stops everything; None if a signal came first."""
    chosen = [one for one in SCENARIOS if not only or one.name in only]

    async def play_scenarios() -> Report:
        async with Environment(folder, store_url=store, port=port or 0) as environment:
            return await play(
                environment,
                store=redact_url(environment.store_url),
                kept=kept,
                on_progress=on_progress,
                scenarios=chosen,
                compare=compare,
            )

    return _run(play_scenarios())


def _run(work: Coroutine[Any, Any, T]) -> T | None:
    """Runs it to its end and returns its result; None if a signal cancelled it."""

    async def interruptible() -> T | None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # Only once: a second signal must not interrupt the clean-up after the first.
            if not task.cancelling():
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        try:
            return await task
        except asyncio.CancelledError:
            return None

    return asyncio.run(interruptible())


# --- what is printed ------------------------------------------------------------------------------


def _print_address(environment: Environment, out: Output, *, kept: bool) -> None:
    """Prints the address and what to try. With --json it prints one document and nothing more."""
    people = environment.data_dir.people
    store = redact_url(environment.store_url)
    if out.as_json:
        accounts = [{"id": one.id, "name": one.name, "token": one.token} for one in people]
        out.data({"url": environment.url, "store": store, "kept": kept, "accounts": accounts})
        return
    out.line("A payments API in which nobody is charged twice. Open the page and press a button:")
    out.line("")
    out.line(f"    {environment.url}")
    out.line("")
    tokens = {f"token of {one.name}": one.token for one in people}
    where = "" if kept or not store.startswith("sqlite:") else "  (temporary; --path keeps it)"
    out.rows({**tokens, "keys are in": store + where})
    for line in _by_hand(environment.url, people[0].token):
        out.line(line)
    out.line("")
    out.line("Ctrl-C ends it.")


def _by_hand(url: str, token: str) -> Iterator[str]:
    """Yields commands to paste."""
    who = shlex.quote(f"Authorization: Bearer {token}")

    def charge(cents: int) -> str:
        sent = shlex.quote(f'{{"order": "order-1", "cents": {cents}}}')
        how = "-H 'Content-Type: application/json' -H 'Idempotency-Key: order-1'"
        return f"curl -i {url}/charges -H {who} {how} -d {sent}"

    yield ""
    yield "# charge a card; the same line again is a replay, and charges nothing"
    yield charge(4_900)
    yield "# the same key for another amount is refused"
    yield charge(100)
    yield "# what was really charged"
    yield f"curl -s {url}/ledger -H {who}"


def show(report: Report, console: Console) -> None:
    """Prints the table, the summary, and where to look further."""
    wide = console.width >= _WIDE
    if report.without is None:
        console.print(_table(report, wide=wide))
    else:
        console.print(_comparison(report, report.without, wide=wide))
        console.print(Text(report.headline, "bold"))
    marks = ("OK:", "BROKEN:") if console.options.ascii_only else ("✓", "✗")
    mark, style = (marks[0], "bold green") if report.ok else (marks[1], "bold red")
    subject = "" if report.without is None else "with oncekey: "
    console.print(Text(f"{mark} {subject}{report.summary}", style))
    seconds = f"{report.seconds:.1f} s"
    console.print(
        Text(f"  as the payment provider's own ledger shows; played in {seconds} on", "dim")
    )
    # Never wrapped, so that they can be copied.
    console.print(Text(f"  {report.store}"), soft_wrap=True)
    if report.kept and report.results:
        look = f"oncekey show {report.store} {OPERATION} {report.results[0].key}"
        console.print(Text("  look yourself:", "dim"))
        console.print(Text(f"  {look} --scope {report.caller}"), soft_wrap=True)
    elif report.store.startswith("sqlite:"):
        console.print(Text("  (a temporary file, gone by now; keep it with --path FOLDER)", "dim"))


def _comparison(report: Report, without: tuple[ScenarioResult, ...], *, wide: bool) -> Table:
    """The table of both handlers; in a narrow window the stories are left out."""
    table = _empty_table()
    if wide:
        table.add_column("What happened", width=_COMPARED_STORY_WIDTH)
    table.add_column("Without oncekey")
    table.add_column("With oncekey")
    for number, (naive, ours) in enumerate(zip(without, report.results, strict=True), 1):
        title = Text(ours.title, "bold")
        above = [] if wide else [title]  # in both columns, so that they begin on one line
        cells = [Group(*above, _compared(result)) for result in (naive, ours)]
        story = [Group(title, Text(ours.story))] if wide else []
        table.add_row(Text(str(number)), *story, *cells)
    return table


def _compared(result: ScenarioResult) -> RenderableType:
    style = "bold red" if result.is_doubled else "bold green"
    asked = times(result.counted.asked)
    effect = Text(result.effect, style)
    if result.counted.asked != result.counted.acted + result.counted.declined:
        effect.append(f", asked {asked}", "dim not bold")
    return Group(_answers(result), effect, Text(result.reason, "dim"))


def _empty_table() -> Table:
    table = Table(box=box.ROUNDED, show_lines=True, header_style="bold", border_style="dim")
    table.add_column("", style="bold", no_wrap=True)
    return table


def _table(report: Report, *, wide: bool) -> Table:
    table = _empty_table()
    if wide:
        table.add_column("What happened", width=_STORY_WIDTH)
        table.add_column("What each caller got")
    else:
        table.add_column("What happened, and what each caller got")
    table.add_column("Ran", no_wrap=True)
    for number, result in enumerate(report.results, 1):
        story = Group(Text(result.title, "bold"), Text(f"{result.story} {result.reason}"))
        answers = _answers(result)
        cells = [story, answers] if wide else [Group(story, Text(), answers)]
        table.add_row(Text(str(number)), *cells, _ran(result))
    return table


def _answers(result: ScenarioResult) -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column()
    for answer in result.answers:
        grid.add_row(Text(answer.who), _answer(answer))
    # The naive handler promises nothing that it could break.
    faults = result.faults if result.handler is Handler.GUARDED else []
    return Group(grid, *(Text(f"BROKEN: {fault}", "bold red") for fault in faults))


def _answer(answer: CallerResult) -> Text:
    words = Text(answer.got, _STYLES[answer.got])
    if answer.receipt:
        words.append(f" {answer.receipt}", "bold default")
    if answer.detail:
        words.append(f" ({answer.detail})", "default")
    return words


def _ran(result: ScenarioResult) -> Text:
    """How often it took effect by the ledger, and how often the provider was asked if more."""
    acted, declined = result.counted.acted, result.counted.declined
    words = "declined" if declined and not acted else times(acted)
    ran = Text(words, "bold green" if result.ok else "bold red")
    if result.counted.asked != acted + declined:
        ran.append(f"\nasked\n{times(result.counted.asked)}", "dim not bold")
    return ran
