"""Operators on a store that keys are being moved to or from: a decision that would be lost is
refused, and what is read comes with a warning. Nothing is refused that does no harm.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command

from oncekey import ConfigurationError, KeyStatus, Once, Policy, Terminal
from oncekey.cli.output import ExitCode
from oncekey.core.commands import Look, Seen
from oncekey.core.record import State
from oncekey.dashboard.dashboard_keys import Decision, keys_of
from oncekey.stores.move import DualStore
from oncekey.stores.sqlite import SQLiteStore, durability, mounts
from oncekey.stores.sqlite.mounts import FileSystem

WHO = ("--by", "ana", "--why", "card renewed", "--yes")


class Move:
    """A move between two SQLite files, with a failed key in both."""

    def __init__(self, directory: Path) -> None:
        self.files = {side: directory / f"{side}.db" for side in ("old", "new")}
        self.urls = {side: f"sqlite:///{file}" for side, file in self.files.items()}
        self.pair = f"moving://{self.urls['old']},{self.urls['new']}"
        with closing(Once(self.pair, policy=Policy(keep="1h"))) as once:
            with pytest.raises(Terminal):
                once.run("charge", "k", fail)
            status = once.get("charge", "k")
        assert status is not None
        self.status: KeyStatus = status

    def finish(self) -> None:
        stores = [SQLiteStore(file) for file in self.files.values()]
        with closing(DualStore(*stores)) as both:
            both.finish_copy()

    def is_failed(self, side: str) -> bool:
        with closing(SQLiteStore(self.files[side])) as store:
            (seen,) = store.apply([Look(bytes.fromhex(self.status.id))])
        assert isinstance(seen, Seen)
        assert seen.record is not None
        return seen.record.state is State.FAILED


def fail(attempt: Any) -> None:
    raise Terminal("card expired")


@pytest.fixture
def move(tmp_path: Path) -> Move:
    return Move(tmp_path)


@pytest.mark.parametrize("how", [("charge", "k"), ("--tag", "TAG"), ("--key", "k")])
def test_a_decision_in_a_store_that_was_left_or_is_being_filled_is_refused(
    here: Command, move: Move, how: tuple[str, ...]
) -> None:
    words = [move.status.tag if word == "TAG" else word for word in how]
    filled = here("release", move.urls["new"], *words, *WHO)
    assert filled.code == ExitCode.USAGE
    assert "nothing can be decided here: this store is still being filled" in filled.err
    move.finish()
    left = here("release", move.urls["old"], *words, *WHO)
    assert left.code == ExitCode.USAGE
    assert "open the new store" in left.err
    assert move.is_failed("old")
    assert move.is_failed("new")
    done = here("release", move.urls["new"], *words, *WHO)
    assert done.code == 0, done.err
    assert not move.is_failed("new")


def test_a_decision_in_the_old_store_alone_is_warned_of_while_both_are_in_use(
    here: Command, move: Move
) -> None:
    """Whoever goes back to the old store alone before the copy must be able to decide there."""
    done = here("release", move.urls["old"], "charge", "k", *WHO)
    assert done.code == 0
    assert "a decision in it may be lost. Open both" in done.err
    assert here("release", move.pair, "charge", "k", *WHO).err == ""


def test_the_dashboard_decides_nothing_in_a_store_that_was_left(move: Move) -> None:
    async def decide(side: str) -> None:
        keys = keys_of(move.urls[side])
        try:
            await keys.decide(move.status, Decision("release"), "ana", "renewed")
        finally:
            await keys.close()

    move.finish()
    with pytest.raises(ConfigurationError, match="open the new store"):
        asyncio.run(decide("old"))
    assert move.is_failed("old")
    asyncio.run(decide("new"))
    assert not move.is_failed("new")


def test_an_engine_that_has_run_all_the_time_decides_nothing_in_a_store_that_was_left(
    move: Move,
) -> None:
    with closing(Once(move.urls["old"])) as once:
        status = once.get("charge", "k")
        assert status is not None
        move.finish()
        with pytest.raises(ConfigurationError, match="open the new store"):
            once.release(status, by="ana", why="renewed")
    assert move.is_failed("old")


READERS = [
    ("show", "charge", "k"),
    ("show", "--tag", "TAG"),
    ("list",),
    ("exporter", "--once"),
]


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_what_is_read_of_one_store_of_a_move_comes_with_a_warning(
    here: Command, move: Move, command: tuple[str, ...]
) -> None:
    name, *words = [move.status.tag if word == "TAG" else word for word in command]

    def read(url: str) -> str:
        ran = here(name, url, *words)
        assert ran.code == 0, ran.err
        return ran.err

    for side in ("old", "new"):
        assert "WARNING: keys are being moved" in read(move.urls[side])
    assert read(move.pair) == ""
    move.finish()
    assert "WARNING: all keys of this store were moved" in read(move.urls["old"])
    assert read(move.urls["new"]) == ""


def test_stats_have_the_warning_too(here: Command, move: Move) -> None:
    move.finish()
    (warning,) = here("stats", move.urls["old"], "--json").data["warnings"]
    assert "Open the new store" in warning
    for url in (move.urls["new"], move.pair):
        assert here("stats", url, "--json").data["warnings"] == []


def test_doctor_checks_both_stores_and_says_which_one_it_means(
    here: Command, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It checked neither, said "nothing wrong" and exited with 0."""
    monkeypatch.setattr(durability, "has_wal_reset_bug", lambda *version: False)
    monkeypatch.setattr(mounts, "read_file_system", lambda path: FileSystem("ext4", "/"))
    for file in move.files.values():
        file.chmod(0o600)
    both = here("doctor", move.pair, "--json")
    assert (both.code, both.data["healthy"]) == (ExitCode.OK, True)
    for side in ("old", "new"):
        checks = {
            one["check"] for one in both.data["findings"] if f"the {side} store: " in one["what"]
        }
        assert checks >= {"sqlite.synchronous", "store.guarantee", "store.keep"}
    for side in ("old", "new"):
        weak = move.pair.replace(move.urls[side], f"{move.urls[side]}?synchronous=off")
        ran = here("doctor", weak)
        assert ran.code == ExitCode.UNHEALTHY
        broken = [line for line in ran.out.splitlines() if line.startswith("  broken")]
        assert [f"the {side} store: " in line for line in broken] == [True, True]
        assert "synchronous=off: the guarantee is best effort" in broken[0]


def test_a_store_that_was_left_is_still_swept(here: Command, move: Move) -> None:
    """It does no harm, and what was left should not stay for ever."""
    move.finish()
    for url in (move.urls["old"], move.pair):
        swept = here("sweep", url)
        assert (swept.code, swept.err) == (0, "")
