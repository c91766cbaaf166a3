"""The journal across processes: killed, restarted, forked, or a second one. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.client.clients import CLIENT_NAMES, open_client
from tests.client.journal_process import BODY
from tests.client.scripted_server import CutBody, Hang, Respond, RespondSlowly, scripted_server

from oncekey import ConfigurationError
from oncekey.client import Journal

ROOT = Path(__file__).parents[2]


@contextmanager
def client_process(what: str, path: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.client.journal_process", what, str(path), url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def run(what: str, path: Path, url: str) -> str:
    with client_process(what, path, url) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


@pytest.mark.parametrize("moment", ["before the response", "in the response"])
@pytest.mark.parametrize("what", CLIENT_NAMES)
def test_a_killed_client_sends_the_same_key_after_a_restart(
    tmp_path: Path, what: str, moment: str
) -> None:
    stuck = (
        Hang()
        if moment == "before the response"
        else RespondSlowly(500, Respond(201, b"x" * 1_000))
    )
    path = tmp_path / "keys"
    with scripted_server(stuck, Respond(201), Respond(201)) as server:
        with client_process(what, path, server.url) as process:
            assert stuck.arrived.wait(60)
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        run(what, path, server.url)
        run(what, path, server.url)
    killed, back, next_one = server.keys
    assert killed == back
    assert back != next_one, "a request that was answered is not sent again"
    assert [seen.body for seen in server.received] == [BODY] * 3


def test_any_client_reuses_the_key_that_another_client_left(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    hang = Hang()
    with scripted_server(hang, CutBody(5), Respond()) as server:
        with client_process("requests", path, server.url) as process:
            assert hang.arrived.wait(60)
            process.kill()
            process.wait(60)
        with Journal(path) as journal, open_client("httpx", journal=journal) as client:
            assert journal.open_entries() == 1
            got = client.post(server.url, body=BODY)
            assert journal.open_entries() == 0
    assert got.delivery is not None
    assert got.delivery.attempts == 2
    assert len(set(server.keys)) == 1


def test_a_second_process_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    hang = Hang()
    with (
        scripted_server(hang) as server,
        client_process("httpx", path, server.url) as first,
    ):
        assert hang.arrived.wait(60)
        with pytest.raises(ConfigurationError, match=f"{path} is in use by another process"):
            Journal(path)
        with client_process("httpx", path, server.url) as second:
            _, output = second.communicate(timeout=60)
        assert second.returncode == 1
        assert f"{path} is in use by another process" in output
        hang.proceed.set()
        assert first.wait(60) == 0
    assert len(server.received) == 1
    Journal(path).close()


def test_a_refused_second_journal_does_not_unlock_the_file(tmp_path: Path) -> None:
    """SQLite's locks belong to the process: opening and closing the file again would drop them."""
    path = tmp_path / "keys"
    with scripted_server() as server, Journal(path):
        with pytest.raises(ConfigurationError, match="in use"):
            Journal(path)
        with client_process("httpx", path, server.url) as other:
            _, output = other.communicate(timeout=60)
    assert other.returncode == 1
    assert f"{path} is in use by another process" in output
    assert server.received == []


def test_an_entry_written_after_a_fork_survives_a_kill(tmp_path: Path) -> None:
    """A child that closes the connection it inherited could delete the parent's log."""
    path = tmp_path / "keys"
    hang = Hang()
    with scripted_server(hang, Respond()) as server:
        with client_process("fork", path, server.url) as process:
            assert hang.arrived.wait(60)
            process.kill()
            process.wait(60)
        with Journal(path) as journal, open_client("httpx", journal=journal) as client:
            assert journal.open_entries() == 1
            client.post(server.url, body=BODY)
    assert len(set(server.keys)) == 1


def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with scripted_server(Respond()) as server:
        output = run("fork", path, server.url).splitlines()
    assert output[0].startswith(
        f"NotSent the journal {path} was opened before this process was forked"
    )
    assert output[1:] == ["child 3", "open entries 0"]
    assert len(server.received) == 1
    with Journal(path) as journal:
        assert journal.open_entries() == 0


def test_a_forked_child_cannot_open_its_parents_journal(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    output = run("fork and open", path, "").splitlines()
    assert output[0].startswith(
        f"ConfigurationError the journal {path} is in use by another process"
    )
    assert "was opened before this process was forked" in output[1]
    assert output[2:] == ["open entries 0"]


def test_a_child_that_outlives_its_parent_does_not_lock_the_journal(tmp_path: Path) -> None:
    """The child inherited the lock file, but the journal is free once the parent has ended."""
    path = tmp_path / "keys"
    with client_process("fork and die", path, "") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert process.wait(60) == 0
            Journal(path).close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_closing_a_journal_unlocks_it_even_if_a_child_has_a_copy(tmp_path: Path) -> None:
    """A child that has just been forked still has a copy of the lock."""
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
