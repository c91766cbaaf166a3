"""A command imports what it needs, not what the other commands need."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import click
import pytest

from oncekey.cli import commands
from oncekey.cli.app import cli
from oncekey.cli.command_table import COMMANDS, CommandGroup

# Packages that only some commands need; rich is needed for what is shown to people.
HEAVY = ("oncekey.verify", "oncekey.doctor", "oncekey.queues", "oncekey.demo", "rich")

PROGRAM = """
import sys
from oncekey.cli.main import main
assert main(sys.argv[1:]) == 0
print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [("version", "--json"), ("sweep", "--help")])
def test_a_command_imports_nothing_of_the_others(arguments: tuple[str, ...]) -> None:
    program = [sys.executable, "-c", PROGRAM.format(heavy=HEAVY), *arguments]
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split()) == (0, [])


def test_every_command_of_the_table_has_the_name_it_has_there() -> None:
    context = click.Context(cli)
    names = cli.list_commands(context)
    assert names == sorted(COMMANDS)
    for name in names:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_every_module_of_a_command_is_in_the_table() -> None:
    modules = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert modules == set(COMMANDS.values())


def test_only_the_command_that_is_asked_for_is_loaded() -> None:
    group = CommandGroup("fresh")
    context = click.Context(group)
    found = group.get_command(context, "version")
    assert list(group.commands) == ["version"]
    assert group.get_command(context, "version") is found
    assert group.get_command(context, "versoin") is None
    assert set(group.commands) == set(COMMANDS), "click guesses among these"
