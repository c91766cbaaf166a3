"""Starts Dramatiq workers as processes of their own, for tests that kill them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import processes
from tests.support.servers.processes import Process

_ROOT = Path(__file__).parent.parent.parent


def start_dramatiq(environment: Mapping[str, str]) -> Process:
    """Start a worker of one process with two threads."""
    directory = processes.scratch() / processes.fresh_name("dramatiq")
    directory.mkdir()
    options = ["--processes=1", "--threads=2", "--skip-logging", "--worker-shutdown-timeout=500"]
    return processes.launch(
        "dramatiq worker",
        [sys.executable, "-m", "dramatiq", "tests.queues.dramatiq_app", *options],
        processes.User(),
        directory,
        death_signal="SIGKILL",
        env={**environment, "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"},
    )


@contextmanager
def loaded_actors(environment: Mapping[str, str]) -> Iterator[Any]:
    """The module with the actors, loaded in this process as their senders have it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        sys.modules.pop("tests.queues.dramatiq_app", None)
        module = importlib.import_module("tests.queues.dramatiq_app")
    yield module
    module.broker.close()
    if hasattr(module.broker, "client"):
        module.broker.client.close()
    module.once.close()
    module.notes.close()
