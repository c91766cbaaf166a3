"""The demo's report for people. Owns the looks; judges nothing."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from oncekey.cli.demo.bodies import OPERATION
from oncekey.cli.demo.play import Report
from oncekey.cli.demo.scene import Answer, Got, Scene, times
from oncekey.cli.demo.stage import store_url

_COLOURS = {
    Got.RAN: "green",
    Got.REPLAYED: "cyan",
    Got.IN_FLIGHT: "yellow",
    Got.UNKNOWN: "yellow",
    Got.MISMATCH: "magenta",
    Got.FAILED: "red",
    Got.STORED_ERROR: "red",
    Got.KILLED: "red",
}
# From here on the answers have room beside the story; in a narrower window they go below it.
_WIDE = 110
_STORY_WIDTH = 44


def show(report: Report, console: Console) -> None:
    """Print the table, the line to remember, and where to look further."""
    console.print(_table(report, wide=console.width >= _WIDE))
    marks = ("OK:", "BROKEN:") if console.options.ascii_only else ("✓", "✗")
    mark, colour = (marks[0], "bold green") if report.ok else (marks[1], "bold red")
    console.print(Text(f"{mark} {report.summary}", colour))
    seconds = f"{report.seconds:.1f} s"
    console.print(Text(f"  as the payment provider's own books say; played in {seconds} on", "dim"))
    # Never wrapped, so that they can be copied.
    console.print(Text(f"  {store_url(report.folder)}"), soft_wrap=True)
    if report.kept:
        look = f"oncekey show {store_url(report.folder)} {OPERATION} {report.scenes[0].order}"
        console.print(Text("  look yourself:", "dim"))
        console.print(Text(f"  {look}"), soft_wrap=True)
    else:
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
    for scene in report.scenes:
        story = Group(Text(scene.title, "bold"), Text(scene.story))
        answers = _answers(scene)
        cells = [story, answers] if wide else [Group(story, Text(), answers)]
        table.add_row(Text(scene.number), *cells, _ran(scene))
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
