"""`oncekey demo`, played for real: servers, sockets, and a worker that is killed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from tests.support.postgres_stores import server
from tests.support.servers.processes import children_of, is_running

from oncekey.cli.output import ExitCode

if TYPE_CHECKING:
    from tests.cli.conftest import Command, Ran

PATIENCE_SECONDS = 240

ANSWERS = {
    "lost-answer": ["answer lost", "replayed", "replayed"],
    "at-once": ["ran", "replayed"],
    "other-amount": ["ran", "mismatch", "mismatch", "replayed"],
    "flaky": ["failed", "failed", "ran", "replayed"],
    "impatient": ["gave up", "replayed"],
    "killed": ["killed", "ran", "replayed"],
    "declined": ["declined", "replayed"],
    "refund": ["ran", "replayed"],
    "redelivered": ["killed", "ran", "replayed"],
}


# Where the tutorials' handler moves the money more than once.
DOUBLED = (
    "lost-answer",
    "at-once",
    "other-amount",
    "flaky",
    "impatient",
    "killed",
    "refund",
    "redelivered",
)


@pytest.fixture(scope="module")
def played(oncekey: Command) -> Ran:
    return oncekey("demo", "--play", "--compare", "--json")


def test_every_scenario_keeps_its_promise(played: Ran) -> None:
    assert played.code == ExitCode.OK, played.out + played.err
    assert played.err == ""
    assert played.data["ok"] is True
    assert played.data["summary"] == "9 scenarios, every operation ran once"
    results = {result["name"]: result for result in played.data["scenarios"]}
    assert {
        name: [a["got"] for a in result["answers"] if a["got"] != "in flight"]
        for name, result in results.items()
    } == ANSWERS
    assert all(result["ok"] and result["faults"] == [] for result in results.values())


def test_the_provider_acted_once_for_every_operation(played: Ran) -> None:
    counted = {result["name"]: result["counted"] for result in played.data["scenarios"]}
    acted = {name: counts["acted"] for name, counts in counted.items()}
    assert acted == {**dict.fromkeys(ANSWERS, 1), "declined": 0}
    declined = {name: counts["declined"] for name, counts in counted.items()}
    assert declined == {**dict.fromkeys(ANSWERS, 0), "declined": 1}
    # Only a failed try and a takeover call the provider again, with the same child key.
    asked = {name: counts["asked"] for name, counts in counted.items()}
    assert asked == {**dict.fromkeys(ANSWERS, 1), "flaky": 3, "killed": 2, "redelivered": 2}


def test_the_naive_handler_moves_money_twice_in_the_same_scenarios(played: Ran) -> None:
    without = {result["name"]: result for result in played.data["without"]}
    assert list(without) == list(ANSWERS)
    assert {result["handler"] for result in without.values()} == {"naive"}
    assert [name for name, result in without.items() if result["doubled"]] == list(DOUBLED)
    acted = {name: result["counted"]["acted"] for name, result in without.items()}
    # How many of the duplicates look the key up in time is a matter of the machine.
    assert acted.pop("at-once") >= 2
    assert acted == {**dict.fromkeys(acted, 2), "declined": 0}
    assert without["declined"]["counted"]["declined"] == 2
    assert without["declined"]["effect"] == "declined, never charged"


def test_a_comparison_counts_scenarios_and_judges_only_oncekey(played: Ran) -> None:
    assert played.data["charged_twice"] == {"without": 6, "with": 0}
    assert played.data["refunded_twice"] == {"without": 1, "with": 0}
    assert played.data["shipped_twice"] == {"without": 1, "with": 0}
    assert played.code == ExitCode.OK


def test_a_comparison_is_shown_side_by_side(here: Command) -> None:
    ran = here("demo", "--play", "--compare", "--only", "flaky")
    assert ran.code == ExitCode.OK, ran.err
    head = next(line for line in ran.out.splitlines() if "Without oncekey" in line)
    assert "With oncekey" in head
    row = next(line for line in ran.out.splitlines() if "charged twice, asked 3 times" in line)
    assert row.index("charged twice") == head.index("Without oncekey")
    assert row.index("charged once, asked 3 times") == head.index("With oncekey")
    assert (
        "charged twice: 1 without oncekey / 0 with; refunded twice: 0 / 0; shipped twice: 0 / 0"
        in ran.out
    )
    assert "with oncekey: 1 scenario, every operation ran once" in ran.out
    assert "BROKEN" not in ran.out


def test_without_compare_the_naive_handler_is_not_played(here: Command) -> None:
    ran = here("demo", "--play", "--json", "--only", "declined")
    assert ran.data["without"] is None
    assert ran.data["charged_twice"] == {"without": None, "with": 0}


def test_all_callers_of_a_scenario_got_the_same_receipt(played: Ran) -> None:
    for result in played.data["scenarios"]:
        receipts = {a["receipt"] for a in result["answers"] if a["receipt"]}
        # A consumer answers nobody.
        assert len(receipts) == (0 if result["name"] in ("declined", "redelivered") else 1)


def test_the_demo_removes_its_temporary_files(played: Ran) -> None:
    assert played.data["kept"] is False
    file = Path(unquote(played.data["store"].removeprefix("sqlite:///")))
    assert not file.parent.exists()


def test_path_keeps_the_files_for_oncekey_show(here: Command, tmp_path: Path) -> None:
    folder = tmp_path / "a demo, 100%"
    ran = here("demo", "--play", "--only", "declined", "--path", str(folder))
    assert ran.code == ExitCode.OK, ran.err
    assert "1 scenario, every operation ran once" in ran.out
    hint = re.search(r"oncekey (show \S+ payments \S+ --scope \S+)", ran.out)
    assert hint is not None
    looked = here(*hint[1].split(), "--json")
    assert looked.code == ExitCode.OK
    assert looked.data["state"] == "succeeded"
    assert (folder / "accounts.json").stat().st_mode & 0o077 == 0


def test_the_demo_plays_on_postgresql(here: Command) -> None:
    url = server().create_database("demo")
    ran = here("demo", "--play", "--json", "--only", "killed", "--store", url)
    assert ran.code == ExitCode.OK, ran.err
    assert ran.data["store"].startswith("postgresql://")
    (result,) = ran.data["scenarios"]
    assert result["counted"] == {"asked": 2, "acted": 1, "declined": 0}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_leaves_nothing_running(executable: str, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [executable, "demo", "--play", "--only", "killed", "--path", tmp_path / "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _until(lambda: bool(children_of(demo.pid)))
        workers = children_of(demo.pid)
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=PATIENCE_SECONDS)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == ExitCode.INTERRUPTED
    assert out == ""
    assert err.split() == ["oncekey:", "interrupted"]
    assert [pid for pid in workers if is_running(pid)] == []


def test_the_demo_serves_until_it_is_interrupted(executable: str, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [executable, "demo", "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert demo.stdout is not None
    try:
        said = "".join(iter(demo.stdout.readline, "Ctrl-C ends it.\n"))
        url = re.search(r"http://\S+", said)
        assert url is not None
        port = urlsplit(url[0]).port or 0
        lines = [line for line in said.splitlines() if line.startswith("curl ")]
        first, again, other, ledger = map(_pasted, [lines[0], *lines])
        assert (first.status_code, again.status_code, other.status_code) == (201, 201, 422)
        assert again.headers["x-idempotency-replayed"] == "true"
        assert [entry["id"] for entry in ledger.json()] == [first.json()["id"]]
        assert list(tmp_path.iterdir()) != []
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=PATIENCE_SECONDS)
    finally:
        demo.kill()
        demo.wait()
    assert (demo.returncode, out, err) == (ExitCode.OK, "", "")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)


def test_wrong_options_of_the_demo_are_refused(here: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = here("demo", "--port", str(port))
    assert busy.code == ExitCode.FAILED
    assert f"port {port} of 127.0.0.1 cannot be had" in busy.err
    unknown = here("demo", "--play", "--only", "nothing")
    assert unknown.code == ExitCode.USAGE
    assert "lost-answer, at-once" in unknown.err
    assert here("demo", "--only", "killed").code == ExitCode.USAGE
    assert here("demo", "--compare").code == ExitCode.USAGE
    assert here("demo", "--store", "memory://").code == ExitCode.USAGE


def test_an_unreachable_store_is_reported_without_its_password(here: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    ran = here("demo", "--play", "--store", f"postgresql://me:s3cret-word@127.0.0.1:{port}/shop")
    assert ran.code == ExitCode.FAILED
    assert ran.err.count("\n") == 1
    assert "s3cret-word" not in ran.err


def test_the_demo_without_its_extra_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None; from oncekey.cli.main import main; "
        "sys.exit(main(['demo']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == ExitCode.USAGE
    assert 'pip install "oncekey[demo]"' in done.stderr


def _pasted(line: str) -> httpx.Response:
    """Sends the request of a curl line, parsed as a shell would."""
    words = shlex.split(line)
    headers = [words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H"]
    sent = words[words.index("-d") + 1] if "-d" in words else None
    method = "GET" if sent is None else "POST"
    return httpx.request(method, words[2], headers=dict(headers), content=sent, trust_env=False)


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)
