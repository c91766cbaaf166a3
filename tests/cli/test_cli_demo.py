"""`oncekey demo`, played for real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from oncekey.cli.exits import Exit

if TYPE_CHECKING:
    from tests.cli.conftest import Command, Ran

PATIENCE_SECONDS = 60

ANSWERS = {
    "1": ["ran", "replayed", "replayed"],
    "2": ["ran", "in flight", "in flight", "replayed"],
    "3a": ["killed", "in flight", "outcome unknown", "replayed"],
    "3b": ["killed", "in flight", "ran", "replayed"],
    "4": ["ran", "mismatch", "mismatch", "replayed"],
    "5": ["failed", "stored error"],
    "6": ["killed", "replayed"],
}


@pytest.fixture(scope="module")
def played(oncekey: Command) -> Ran:
    return oncekey("demo", "--json")


def test_every_promise_is_kept(played: Ran) -> None:
    assert played.code == Exit.OK, played.err
    assert played.err == ""
    assert played.data["ok"] is True
    assert played.data["summary"] == "6 scenarios, every operation ran once"
    scenes = {scene["number"]: scene for scene in played.data["scenarios"]}
    assert {n: [a["got"] for a in s["answers"]] for n, s in scenes.items()} == ANSWERS
    assert all(scene["ok"] and scene["faults"] == [] for scene in scenes.values())


def test_every_operation_took_effect_once(played: Ran) -> None:
    counted = {scene["number"]: scene["counted"] for scene in played.data["scenarios"]}
    assert {number: counts["acted"] for number, counts in counted.items()} == dict.fromkeys(
        ANSWERS, 1
    )
    # Only the takeover may ask the provider a second time, with the same child key.
    asked = {number: counts["asked"] for number, counts in counted.items()}
    assert asked == {**dict.fromkeys(ANSWERS, 1), "3b": 2}


def test_everybody_got_the_same_receipt(played: Ran) -> None:
    for scene in played.data["scenarios"]:
        receipts = {a["receipt"] for a in scene["answers"] if a["receipt"]}
        assert len(receipts) == (0 if scene["number"] == "5" else 1)


def test_temporary_files_are_gone(played: Ran) -> None:
    assert played.data["kept"] is False
    file = Path(unquote(played.data["store"].removeprefix("sqlite:///")))
    assert not file.parent.exists()


def test_files_are_kept_on_request_and_can_be_looked_at(oncekey: Command, tmp_path: Path) -> None:
    folder = tmp_path / "a demo, 100%"
    ran = oncekey("demo", "--path", str(folder))
    assert ran.code == Exit.OK, ran.err
    assert "6 scenarios, every operation ran once" in ran.out
    hint = re.search(r"oncekey (show \S+ charge \S+)", ran.out)
    assert hint is not None
    looked = oncekey(*hint[1].split(), "--json")
    assert looked.code == Exit.OK
    assert looked.data["state"] == "succeeded"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_leaves_nothing_running(executable: str, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [executable, "demo", "--path", tmp_path / "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _until(lambda: bool(_running(tmp_path, "demo.victim")))
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=PATIENCE_SECONDS)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == Exit.INTERRUPTED
    assert out == ""
    assert err.split() == ["oncekey:", "interrupted"]
    assert _running(tmp_path, "") == []


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def _running(folder: Path, word: str) -> list[str]:
    """Command lines of live processes that name both the folder and the word."""
    found = []
    for process in os.listdir("/proc"):
        try:
            line = Path("/proc", process, "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if process.isdigit() and str(folder) in line and word in line:
            found.append(line)
    return found
