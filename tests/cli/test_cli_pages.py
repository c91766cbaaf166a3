"""The `oncekey` commands in the pages and in the help are ones that the command accepts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from tests.docs.pages import PAGES, blocks, name_of

from oncekey.cli.command_group import LazyCommand, cli
from oncekey.cli.output import ExitCode

CONTEXT = click.Context(cli)


def _command(name: str) -> click.Command:
    command = cli.get_command(CONTEXT, name)
    assert isinstance(command, LazyCommand), name
    return command.load()


def _in_pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in "\n".join(blocks(page, "sh")).splitlines():
            if line.startswith("oncekey "):
                yield name_of(page), line


def _in_help() -> Iterator[tuple[str, str]]:
    for name in cli.list_commands(CONTEXT):
        for line in (_command(name).help or "").splitlines():
            if line.strip().startswith("oncekey "):
                yield f"{name} --help", line.strip()


@pytest.mark.parametrize(("where", "line"), [*_in_pages(), *_in_help()])
def test_a_printed_command_is_accepted(
    where: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEKEY_STORE", "sqlite:///any.db")
    words = shlex.split(line, comments=True)[1:]
    for end in ("|", ">"):
        words = words[: words.index(end)] if end in words else words
    name, *rest = words
    context = _command(name).make_context(name, [*rest], parent=CONTEXT)
    assert context.args == []


def test_every_command_and_exit_code_is_in_the_reference() -> None:
    (page,) = [page for page in PAGES if page.name == "command-line.md"]
    text = page.read_text()
    for name in cli.list_commands(CONTEXT):
        assert f"| `oncekey {name}" in text, name
    for code in ExitCode:
        assert f"| {int(code)} |" in text, code
    assert cli.epilog is not None
    for code in ExitCode:
        assert f"{int(code)} " in cli.epilog, code
