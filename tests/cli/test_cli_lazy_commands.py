"""A command imports what it needs, not what the other commands need, and works without that."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Iterable

import click
import pytest
from tests.cli.operator_shop import Shop

from oncekey.cli import commands
from oncekey.cli.command_group import SUMMARIES, LazyCommand, cli

CONTEXT = click.Context(cli, info_name="oncekey")
NAMES = cli.list_commands(CONTEXT)

# What `oncekey --help` imports of oncekey.
HELP_IMPORTS = {
    "oncekey",
    "oncekey.cli",
    "oncekey.cli.command_group",
    "oncekey.cli.command_input",
    "oncekey.cli.main",
    "oncekey.cli.output",
    "oncekey.cli.password_redaction",
    "oncekey.core",
    "oncekey.core.duration",
    "oncekey.core.errors",
}
# What `oncekey resolve` imports of the command line beside that.
RESOLVE_IMPORTS = {
    "oncekey.cli.commands",
    "oncekey.cli.commands.resolve",
    "oncekey.cli.key_choice",
    "oncekey.cli.key_report",
    "oncekey.cli.signals",
    "oncekey.cli.store_access",
}
# Besides, it may import from these packages, but for what needs no store or another one: it runs
# no operation.
RESOLVE_PACKAGES = ("oncekey.core", "oncekey.engine", "oncekey.stores")
RESOLVE_EXCEPT = (
    "oncekey.engine.async_once",
    "oncekey.engine.attempts",
    "oncekey.engine.background",
    "oncekey.engine.jobs",
    "oncekey.engine.once",
    "oncekey.stores.etcd",
    "oncekey.stores.memory",
    "oncekey.stores.move",
    "oncekey.stores.postgres",
    "oncekey.stores.redis",
)

# Prints the exit code of the command and the modules of the process.
PROGRAM = """
import sys
from oncekey.cli.main import main
code = main(sys.argv[1:])
print(code, *sys.modules, file=sys.stderr)
"""

# Takes the name of a module that raises when it is imported, and prints the commands whose help
# fails then.
BROKEN = """
import importlib.abc, importlib.machinery, sys

class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module):
        raise RuntimeError("a broken release")

sys.meta_path.insert(0, Broken())
from oncekey.cli.main import main
assert main(["--help"]) == 0
print(*(name for name in sys.argv[2:] if main([name, "--help"]) != 0), file=sys.stderr)
"""


def imported_by(*arguments: str) -> set[str]:
    """The modules of a process that has run the command."""
    program = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(program, capture_output=True, text=True)
    code, *modules = done.stderr.split()
    assert code == "0", done.stderr
    return set(modules)


def within(modules: Iterable[str], packages: Iterable[str]) -> set[str]:
    beginnings = tuple(f"{package}." for package in packages)
    return {name for name in modules if f"{name}.".startswith(beginnings)}


# --- what is imported -----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",)])
def test_help_and_the_version_import_no_command_and_no_engine(arguments: tuple[str, ...]) -> None:
    modules = imported_by(*arguments)
    assert within(modules, ["oncekey"]) == HELP_IMPORTS
    assert within(modules, ["asyncio", "rich", "sqlite3"]) == set()


def test_resolve_imports_its_store_and_no_queues_verifier_or_demo(file_shop: Shop) -> None:
    file_shop.unknown("charge", "order-1")
    reason = ("--by", "ana", "--why", "INC-7", "--yes")
    modules = imported_by("resolve", file_shop.url, "charge", "order-1", "--free", *reason)
    others = within(modules, ["oncekey"]) - within(modules, RESOLVE_PACKAGES)
    assert others - HELP_IMPORTS == RESOLVE_IMPORTS
    assert within(modules, RESOLVE_EXCEPT) == set()
    assert within(modules, ["oncekey.stores.sqlite"]) != set(), "the walk did reach the store"


def test_a_command_that_prints_json_imports_no_rich() -> None:
    assert within(imported_by("version", "--json"), ["rich"]) == set()


# --- what may be broken ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "taken_down"),
    [
        ("oncekey.cli.commands.verify", {"verify"}),
        ("oncekey.dashboard", set()),
        ("oncekey.demo", {"demo"}),
        ("oncekey.doctor", {"doctor"}),
        ("oncekey.metrics", {"exporter"}),
        ("oncekey.queues", {"consume", "doctor", "redrive"}),
        ("oncekey.stores.move", {"copy"}),
        ("oncekey.verify", {"verify"}),
        ("rich", set()),
    ],
)
def test_a_package_that_cannot_be_imported_takes_down_only_what_uses_it(
    broken: str, taken_down: set[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, broken, *NAMES], capture_output=True, text=True
    )
    *complaints, last = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert set(last.split()) == taken_down
    assert len(complaints) == len(taken_down)
    assert all("a broken release" in line for line in complaints)


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_command_is_listed_under_its_name_with_the_first_sentence_of_its_help(name: str) -> None:
    listed = cli.get_command(CONTEXT, name)
    assert isinstance(listed, LazyCommand)
    command = listed.load()
    assert command.name == name
    assert command.get_short_help_str(limit=1_000) == listed.help == SUMMARIES[name]


def test_every_module_of_a_command_is_in_the_table() -> None:
    modules = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert modules == {"list_keys" if name == "list" else name for name in SUMMARIES}
