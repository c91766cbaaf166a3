"""`oncekey demo`."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from oncekey.cli.commands.options import json_option
from oncekey.cli.demo import present
from oncekey.cli.demo.play import play
from oncekey.cli.exits import Exit
from oncekey.cli.opening import UsageProblem
from oncekey.cli.output import Output


@click.command()
@click.option(
    "--path",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the files here, to look at afterwards. A temporary folder otherwise.",
)
@json_option
@click.pass_context
def demo(context: click.Context, path: Path | None, as_json: bool) -> None:
    """Watch retries, crashes and redeliveries do no harm.

    Plays six scenarios for real, in a few seconds: concurrent callers are threads, crashes are
    processes killed with SIGKILL, the store is an embedded SQLite file. How often each operation
    ran is counted in the books of the (small, local) payment provider it calls. The exit code is
    1 if any count or answer is not as promised.

    \b
    Examples:
      oncekey demo
      oncekey demo --path ./demo      then: oncekey show sqlite:///demo/oncekey.db charge KEY
    """
    out = Output(as_json=as_json)
    with ExitStack() as stack:
        folder = _folder(path, stack)
        tell = stack.enter_context(out.progress("playing the scenarios"))
        report = play(folder, kept=path is not None, tell=tell)
    if as_json:
        out.data(report.as_data())
    else:
        present.show(report, out.console)
    if not report.ok:
        context.exit(Exit.FAILED)


def _folder(path: Path | None, stack: ExitStack) -> Path:
    """The folder to play in; a temporary one goes when the stack does."""
    if path is None:
        made = tempfile.TemporaryDirectory(prefix="oncekey-demo-")
        return Path(stack.enter_context(made))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageProblem(f"--path {path}: {error.strerror}") from error
    return path.resolve()
