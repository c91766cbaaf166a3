"""kill -9 of a process in dual mode at each of its store calls, and of a copy after each of its
calls, from a SQLite file to PostgreSQL. No test waits for a lease: clocks are ahead of the host's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fault.killed_move_worker import Killer, copy_once, open_both
from tests.support.postgres_stores import address, emptied

from oncekey import ConfigurationError, Once, OutcomeUnknown, Policy
from oncekey.core.commands import Look
from oncekey.core.identity import Identities
from oncekey.stores.move import DualStore
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.sqlite import SQLiteStore
from oncekey.stores.store_rules import wall_clock

WORKER = Path(__file__).with_name("killed_move_worker.py")
TWO_HOURS_US = 7_200_000_000
CHECK = Identities(None).check_value()


def later() -> int:
    """A clock by which the leases of all killed processes are over."""
    return wall_clock() + TWO_HOURS_US


class Move:
    """A SQLite file that moves to a PostgreSQL schema."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "keys.db"
        self.effects = directory / "effects"
        self.effects.touch()
        self.schema: str = emptied({})["schema"]
        self.where = [str(self.file), address({}), self.schema]
        with closing(open_both(Killer(0, ""), *self.where)) as store:
            store.bind(CHECK)

    def kill(self, mode: str) -> list[tuple[int, str]]:
        command = [sys.executable, str(WORKER), mode, *self.where, str(self.effects)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return [(number, side) for number, side in json.loads(done.stdout)["points"]]

    @contextmanager
    def once(self, *, both: bool) -> Iterator[Once]:
        new = PostgresStore(self.where[1], schema=self.schema, clock=later)
        old = SQLiteStore(self.file, clock=later)
        store: Any = DualStore(old, new) if both else new
        policy = Policy(lease="1h")
        with closing(old), closing(new), closing(Once(store, policy=policy, cache=0)) as once:
            yield once

    def effects_of(self) -> Counter[str]:
        return Counter(self.effects.read_text().split())

    def retry(self, once: Once, key: str) -> object:
        def body(attempt: Any) -> str:
            with self.effects.open("a") as file:
                file.write(f"{key}\n")
            return f"paid {key}"

        try:
            return once.run("op", key, body).value
        except OutcomeUnknown:
            return "unknown"


def test_i1_i4_a_process_in_dual_mode_that_is_killed_at_any_call_leaves_one_answer(
    tmp_path: Path,
) -> None:
    move = Move(tmp_path)
    keys = [f"{number}-{side}" for number, side in move.kill("run")]
    assert len(keys) > 10
    with move.once(both=True) as once:
        answers = {key: move.retry(once, key) for key in keys}
        assert all(answers[key] in ("unknown", f"paid {key}") for key in keys)
        refused = pytest.raises(ConfigurationError, match="still being filled")
        with move.once(both=False) as alone, refused:
            alone.get("op", keys[0])
        store = once._store
        assert isinstance(store, DualStore)
        copy_once(Killer(0, ""), move.where)
        store.finish_copy()
    with move.once(both=False) as once:
        assert {key: move.retry(once, key) for key in keys} == answers
    assert max(move.effects_of().values()) == 1
    paid = {key for key, answer in answers.items() if answer != "unknown"}
    assert paid <= move.effects_of().keys()


def test_i4_a_copy_that_is_killed_after_any_call_can_be_repeated(tmp_path: Path) -> None:
    move = Move(tmp_path)
    with closing(Once(SQLiteStore(move.file))) as once:
        for number in range(5):
            once.run("op", f"k{number}", lambda attempt: "first")
        statuses = [once.get("op", f"k{number}") for number in range(5)]
    assert len(move.kill("copy")) > 8
    ids = [bytes.fromhex(status.id) for status in statuses if status is not None]
    with closing(open_both(Killer(0, ""), *move.where)) as store:
        looks = [Look(id) for id in ids]
        pairs = zip(store.old.apply(looks), store.new.apply(looks), strict=True)
        for old, new in pairs:
            assert new.record.body == old.record.body
            assert new.record.fence == old.record.fence
        store.bind(CHECK)
        store.finish_copy()
    with move.once(both=False) as once:
        answers = [once.run("op", f"k{n}", lambda attempt: "again").value for n in range(5)]
    assert answers == ["first"] * 5
