"""The demo's looks in the terminal: what to do once it runs, and the report of what was played.

Judges nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from oncekey.cli.hiding import redacted
from oncekey.cli.output import Output
from oncekey.demo.api.app import OPERATION
from oncekey.demo.play import Report
from oncekey.demo.scene import Answer, Got, Scene, times
from oncekey.demo.stage import Stage

_COLOURS = {
    Got.RAN: "green",
    Got.REPLAYED: "cyan",
    Got.IN_FLIGHT: "yellow",
    Got.MISMATCH: "magenta",
    Got.DECLINED: "red",
    Got.FAILED: "red",
    Got.REFUSED: "red",
    Got.LOST: "red",
    Got.GAVE_UP: "red",
    Got.KILLED: "red",
}
# From here on the answers have room beside the story; in a narrower window they go below it.
_WIDE = 110
_STORY_WIDTH = 44


def started(stage: Stage, out: Output, *, kept: bool) -> None:
    """Say where it is and what to try. With --json one document, and then nothing more."""
    people = stage.keeping.people
    store = redacted(stage.store_url)
    if out.as_json:
        accounts = [{"id": one.id, "name": one.name, "token": one.token} for one in people]
        out.data({"url": stage.url, "store": store, "kept": kept, "accounts": accounts})
        return
    out.line("A payments API in which nobody is charged twice. Open the page and press a button:")
    out.line("")
    out.line(f"    {stage.url}")
    out.line("")
    facts = {f"token of {one.name}": one.token for one in people}
    where = "" if kept or not store.startswith("sqlite:") else "  (temporary; --path keeps it)"
    out.facts({**facts, "keys are in": store + where})
    for line in _by_hand(stage.url, people[0].token):
        out.line(line)
    out.line("")
    out.line("Ctrl-C ends it.")


def _by_hand(url: str, token: str) -> Iterator[str]:
    """Three lines to paste. Not wrapped, so that they can be copied."""
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
    """Print the table, the line to remember, and where to look further."""
    console.print(_table(report, wide=console.width >= _WIDE))
    marks = ("OK:", "BROKEN:") if console.options.ascii_only else ("✓", "✗")
    mark, colour = (marks[0], "bold green") if report.ok else (marks[1], "bold red")
    console.print(Text(f"{mark} {report.summary}", colour))
    seconds = f"{report.seconds:.1f} s"
    console.print(Text(f"  as the payment provider's own books say; played in {seconds} on", "dim"))
    # Never wrapped, so that they can be copied.
    console.print(Text(f"  {report.store}"), soft_wrap=True)
    if report.kept and report.scenes:
        look = f"oncekey show {report.store} {OPERATION} {report.scenes[0].key}"
        console.print(Text("  look yourself:", "dim"))
        console.print(Text(f"  {look} --scope {report.caller}"), soft_wrap=True)
    elif report.store.startswith("sqlite:"):
        console.print(Text("  (a temporary file, gone by now; keep it with --path FOLDER)", "dim"))


def _table(report: Report, *, wide: bool) -> Table:
    table = Table(box=box.ROUNDED, show_lines=True, header_style="bold", border_style="dim")
    table.add_column("", style="bold", no_wrap=True)
    if wide:
        table.add_column("What happened", width=_STORY_WIDTH)
        table.add_column("What each caller got")
    else:
        table.add_column("What happened, and what each caller got")
    table.add_column("Ran", no_wrap=True)
    for number, scene in enumerate(report.scenes, 1):
        story = Group(Text(scene.title, "bold"), Text(scene.story))
        answers = _answers(scene)
        cells = [story, answers] if wide else [Group(story, Text(), answers)]
        table.add_row(Text(str(number)), *cells, _ran(scene))
    return table


def _answers(scene: Scene) -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column()
    for answer in scene.answers:
        grid.add_row(Text(answer.who), _answer(answer))
    return Group(grid, *(Text(f"BROKEN: {fault}", "bold red") for fault in scene.faults))


def _answer(answer: Answer) -> Text:
    words = Text(answer.got, _COLOURS[answer.got])
    if answer.receipt:
        words.append(f" {answer.receipt}", "bold default")
    if answer.detail:
        words.append(f" ({answer.detail})", "default")
    return words


def _ran(scene: Scene) -> Text:
    """How often it took effect by the books, and how often the provider was asked if more."""
    ran = Text(times(scene.counted.acted), "bold green" if scene.ok else "bold red")
    if scene.counted.asked != scene.counted.acted:
        ran.append(f"\nasked\n{times(scene.counted.asked)}", "dim not bold")
    return ran
