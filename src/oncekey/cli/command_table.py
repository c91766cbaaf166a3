"""Which commands there are, and the group that imports each of them when it is asked for.

Importing all of them takes more than half as long as importing oncekey itself, and a run needs one
of them. The module of a command has it under the module's own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click

_PACKAGE = "oncekey.cli.commands"

# The name on the command line -> the module in that package, and what has this name in it.
COMMANDS: Final[Mapping[str, str]] = {
    "demo": "demo",
    "dashboard": "dashboard",
    "list": "list_keys",
    "show": "show",
    "resolve": "resolve",
    "release": "release",
    "stats": "stats",
    "doctor": "doctor",
    "guarantee": "guarantee",
    "verify": "verify",
    "recover": "recover",
    "consume": "consume",
    "redrive": "redrive",
    "sweep": "sweep",
    "migrate": "migrate",
    "copy": "copy",
    "exporter": "exporter",
    "policy": "policy",
    "completion": "completion",
    "version": "version",
}


class CommandGroup(click.Group):
    """A group with the commands of the table; `commands` has those that were asked for so far."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, as help lists them."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now if it was not before."""
        if cmd_name in COMMANDS:
            return self._loaded(cmd_name)
        # From `commands` click guesses what somebody meant who mistyped a name.
        for name in COMMANDS:
            self._loaded(name)
        return None

    def _loaded(self, name: str) -> click.Command:
        if name not in self.commands:
            module = COMMANDS[name]
            command = getattr(import_module(f"{_PACKAGE}.{module}"), module)
            self.add_command(command, name)
        return self.commands[name]
