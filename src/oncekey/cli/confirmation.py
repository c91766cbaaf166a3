"""Asks whoever sits at the terminal: who decides, why, and whether it is meant.

Questions go to stderr, so that stdout has the result only. Where nobody can answer, the command
must be given everything, and refuses otherwise.
"""

from __future__ import annotations

import getpass
import sys

import click


def can_ask() -> bool:
    """True if somebody can answer."""
    return sys.stdin.isatty()


def ask(question: str) -> bool:
    """True if the answer is yes."""
    return click.confirm(question, default=False, err=True)


def ask_text(question: str, default: str | None = None) -> str:
    """The text that is typed in, not empty."""
    return str(click.prompt(question, default=default, err=True))


def user_name() -> str | None:
    """The name that the system knows the user by, to be offered as an answer."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
