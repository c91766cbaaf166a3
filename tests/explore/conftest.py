"""Prints a summary of what was explored at the end of the run."""

from __future__ import annotations

import pytest

_LINES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def summary(pytestconfig: pytest.Config) -> list[str]:
    """Lines to print at the end of the run."""
    return pytestconfig.stash.setdefault(_LINES, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("exploration")
        for line in lines:
            terminalreporter.write_line(line)
