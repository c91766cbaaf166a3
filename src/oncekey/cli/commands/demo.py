"""`oncekey demo`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from oncekey.cli.command_input import extra, json_option
from oncekey.cli.output import ExitCode, Output, UsageProblem, error_line
from oncekey.demo import DemoFailed

_PACKAGES = frozenset(
    {"fastapi", "starlette", "pydantic", "uvicorn", "httpx", "http_sf", "rfc8785", "multipart"}
)


@click.command()
@click.option("--play", is_flag=True, help="Play every scenario in the terminal, and end.")
@click.option("--only", multiple=True, metavar="NAME", help="With --play: only this scenario.")
@click.option(
    "--compare",
    is_flag=True,
    help="With --play: play it without oncekey too, and show both side by side.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Of 127.0.0.1. By default 8000, or another if that is taken.",
)
@click.option(
    "--store",
    metavar="URL",
    help="Where the keys are: postgresql://... By default an SQLite file in the folder.",
)
@click.option(
    "--path",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the data and the tokens here. A temporary folder otherwise.",
)
@json_option
@click.pass_context
def demo(
    context: click.Context,
    play: bool,
    only: tuple[str, ...],
    compare: bool,
    port: int | None,
    store: str | None,
    path: Path | None,
    as_json: bool,
) -> None:
    """Try hard to charge somebody twice, and watch it not happen.

    Starts a payments API on the loopback, with a slow and flaky payment provider behind it, and a
    page with buttons that play scenarios over real HTTP: lost answers, duplicates at once, a
    worker that is killed, a queue whose consumer is killed. Ctrl-C ends it.

    The page can play them without oncekey too: with the handler of most tutorials, which looks a
    key up, runs, and stores the key.

    With --play the same scenarios are played at once, with --compare without oncekey too. The
    provider's own ledger decides: the exit code is 1 if anything was done twice with oncekey. What
    happens without it never changes the exit code.

    \b
    Examples:
      oncekey demo
      oncekey demo --play
      oncekey demo --play --compare
      oncekey demo --path ./demo --store postgresql://me@localhost/shop
    """
    if store is not None and store.startswith("memory:"):
        raise UsageProblem("--store: memory:// lives in one process, and the demo kills one")
    with extra("demo", "the demo", _PACKAGES):
        from oncekey.cli import demo_console
    _check_what_to_play(play, only, compare, demo_console.NAMES)
    out = Output(as_json=as_json)
    with _failure_in_one_line(context), ExitStack() as stack:
        folder = _folder(path, stack)
        if not play:
            demo_console.serve(folder, out, store=store, port=port, kept=path is not None)
            return
        on_progress = stack.enter_context(out.progress("starting"))
        report = demo_console.play_all(
            folder,
            store=store,
            port=port,
            kept=path is not None,
            only=only,
            compare=compare,
            on_progress=on_progress,
        )
    if report is None:
        raise click.Abort
    if as_json:
        out.data(report.as_data())
    else:
        demo_console.show(report, out.console)
    if not report.ok:
        context.exit(ExitCode.FAILED)


def _check_what_to_play(
    play: bool, only: tuple[str, ...], compare: bool, names: tuple[str, ...]
) -> None:
    """Refuses unknown scenarios, and options that mean nothing without --play."""
    if set(only) - set(names) or (only and not play):
        raise UsageProblem(f"--only takes, with --play: {', '.join(names)}")
    if compare and not play:
        raise UsageProblem("--compare needs --play; the page has a switch for it")


@contextmanager
def _failure_in_one_line(context: click.Context) -> Iterator[None]:
    """Says why the demo could not run. Here and not in command_group.py, which imports nothing of a
    command that is not run."""
    try:
        yield
    except DemoFailed as error:
        error_line(str(error))
        context.exit(ExitCode.FAILED)


def _folder(path: Path | None, stack: ExitStack) -> Path:
    """The folder to play in; a temporary one is removed when the stack is closed."""
    if path is None:
        made = tempfile.TemporaryDirectory(prefix="oncekey-demo-")
        return Path(stack.enter_context(made))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageProblem(f"--path {path}: {error.strerror}") from error
    return path.resolve()
