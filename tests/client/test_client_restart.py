"""A client process that dies, is started again, is forked, or comes second. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.client.callers import NAMES, calling
from tests.client.journal_victim import BODY
from tests.client.scripted import Answer, Cut, Hang, Slow, serving

from oncekey import ConfigurationError
from oncekey.client import Journal

ROOT = Path(__file__).parents[2]


@contextmanager
def victim(what: str, path: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.client.journal_victim", what, str(path), url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def run(what: str, path: Path, url: str) -> str:
    with victim(what, path, url) as process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out


@pytest.mark.parametrize("moment", ["asked", "half answered"])
@pytest.mark.parametrize("what", NAMES)
def test_a_killed_client_sends_the_same_key_when_it_is_back(
    tmp_path: Path, what: str, moment: str
) -> None:
    stuck = Hang() if moment == "asked" else Slow(500, Answer(201, b"x" * 1_000))
    path = tmp_path / "keys"
    with serving(stuck, Answer(201), Answer(201)) as server:
        with victim(what, path, server.url) as process:
            assert stuck.here.wait(30)
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        run(what, path, server.url)
        run(what, path, server.url)
    killed, back, next_one = server.keys
    assert killed == back
    assert back != next_one, "what was answered is over"
    assert [seen.body for seen in server.seen] == [BODY] * 3


def test_any_client_takes_up_what_another_one_left(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    hang = Hang()
    with serving(hang, Cut(5), Answer()) as server:
        with victim("requests", path, server.url) as process:
            assert hang.here.wait(30)
            process.kill()
            process.wait(30)
        with Journal(path) as journal, calling("httpx", journal=journal) as caller:
            assert journal.open_entries() == 1
            got = caller.post(server.url, body=BODY)
            assert journal.open_entries() == 0
    assert got.delivery is not None
    assert got.delivery.attempts == 2
    assert len(set(server.keys)) == 1


def test_a_second_process_is_refused_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    hang = Hang()
    with (
        serving(hang) as server,
        victim("httpx", path, server.url) as first,
    ):
        assert hang.here.wait(30)
        with pytest.raises(ConfigurationError, match=f"{path} is in use by another process"):
            Journal(path)
        with victim("httpx", path, server.url) as second:
            _, said = second.communicate(timeout=30)
        assert second.returncode == 1
        assert f"{path} is in use by another process" in said
        hang.go.set()
        assert first.wait(30) == 0
    assert len(server.seen) == 1
    Journal(path).close()


def test_a_refusal_in_this_process_leaves_the_others_out(tmp_path: Path) -> None:
    """The locks are the process's: whoever opens and closes the file once more could drop them."""
    path = tmp_path / "keys"
    with serving() as server, Journal(path):
        with pytest.raises(ConfigurationError, match="in use"):
            Journal(path)
        with victim("httpx", path, server.url) as other:
            _, said = other.communicate(timeout=30)
    assert other.returncode == 1
    assert f"{path} is in use by another process" in said
    assert server.seen == []


def test_what_is_written_after_a_fork_survives_a_kill(tmp_path: Path) -> None:
    """A child that closes what it inherited could take the parent's log with it."""
    path = tmp_path / "keys"
    hang = Hang()
    with serving(hang, Answer()) as server:
        with victim("fork", path, server.url) as process:
            assert hang.here.wait(30)
            process.kill()
            process.wait(30)
        with Journal(path) as journal, calling("httpx", journal=journal) as caller:
            assert journal.open_entries() == 1
            caller.post(server.url, body=BODY)
    assert len(set(server.keys)) == 1


def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with serving(Answer()) as server:
        said = run("fork", path, server.url).splitlines()
    assert said[0].startswith(
        f"NotSent the journal {path} was opened before this process was forked"
    )
    assert said[1:] == ["child 3", "open entries 0"]
    assert len(server.seen) == 1
    with Journal(path) as journal:
        assert journal.open_entries() == 0


def test_a_forked_child_cannot_open_its_parents_journal(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    said = run("fork and open", path, "").splitlines()
    assert said[0].startswith(f"ConfigurationError the journal {path} is in use by another process")
    assert "was opened before this process was forked" in said[1]
    assert said[2:] == ["open entries 0"]


def test_a_child_that_lives_on_does_not_keep_the_journal(tmp_path: Path) -> None:
    """Whatever it has inherited: the parent's end is the journal's end, however it ended."""
    path = tmp_path / "keys"
    with victim("fork and die", path, "") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert process.wait(30) == 0
            Journal(path).close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_closing_a_journal_unlocks_it_at_once(tmp_path: Path) -> None:
    """Also while somebody has a copy of the lock: a child that has not come to itself yet."""
    path = tmp_path / "keys"
    journal = Journal(path)
    lock_file = journal._file._lock_file
    assert lock_file is not None
    assert lock_file._file is not None
    copy = os.dup(lock_file._file.fileno())
    with pytest.raises(ConfigurationError, match="in use"):
        Journal(path)
    journal.close()
    Journal(path).close()
    os.close(copy)
