"""`resolve` and `release` on SQLite and PostgreSQL: one decision wins, and the note says whose."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command_runner import at_terminal
from tests.cli.conftest import Command
from tests.cli.operator_shop import FAILED, MINUTE_US, ROUTE, SUCCEEDED, Shop

from oncekey import Once
from oncekey.cli import command_input
from oncekey.cli.output import ExitCode
from oncekey.core.commands import Claimed, Done, Look, Lost, Renew, Resolve, Seen
from oncekey.core.record import State

SAID = ("--by", "ana", "--why", "INC-7: found at the provider")
SURE = (*SAID, "--yes")
PATIENCE_SECONDS = 240

Interrupt = Callable[[Callable[[], Any]], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Gives the operator a terminal; what is given here happens between the question and "yes"."""

    def during(act: Callable[[], Any]) -> None:
        def ask(question: str) -> bool:
            act()
            return True

        monkeypatch.setattr(command_input, "can_ask", lambda: True)
        monkeypatch.setattr(command_input, "ask", ask)

    return during


# --- decisions ---------------------------------------------------------------------------------


def test_a_succeeded_value_is_replayed_and_the_note_says_who(here: Command, shop: Shop) -> None:
    owner = shop.unknown("charge", "yes-1")
    value = '{"id": "ch_7"}'
    ran = here("resolve", shop.url, "--tag", owner.tag, "--succeeded", value, *SURE, "--json")
    assert (ran.code, ran.data["decided"], ran.data["as"]) == (ExitCode.OK, True, "succeeded")
    assert ran.data["now"]["state"] == "succeeded"
    (line,) = ran.data["now"]["notes"]
    assert line.endswith("Z ana succeeded: INC-7: found at the provider")
    assert "ch_7" not in ran.out
    shown = here("show", shop.url, "charge", "yes-1", "--bodies").out
    assert value in shown
    assert "decision 1" in shown


def test_what_is_resolved_is_what_a_retry_gets(here: Command, url: str) -> None:
    with Once(url) as once:
        for key in ("ran", "failed", "free"):
            with pytest.raises(KeyboardInterrupt):
                once.run("charge", key, _interrupted)
    assert here("resolve", url, "charge", "ran", "--succeeded", '{"id": 7}', *SURE).code == 0
    assert here("resolve", url, "charge", "failed", "--failed", "declined", *SURE).code == 0
    assert here("resolve", url, "charge", "free", "--free", *SURE).code == 0
    with Once(url) as once:
        assert once.run("charge", "ran", _interrupted).value == {"id": 7}
        with pytest.raises(Exception, match="declined"):
            once.run("charge", "failed", _interrupted)
        assert once.run("charge", "free", lambda attempt: "ran").value == "ran"


def _interrupted(attempt: object) -> None:
    raise KeyboardInterrupt


def test_an_http_key_is_resolved_with_a_response(here: Command, shop: Shop, tmp_path: Path) -> None:
    owner = shop.unknown("http", "web-1", origin=ROUTE)
    file = tmp_path / "answer.json"
    file.write_text('{"id": "ch_1"}')
    key = (shop.url, "--tag", owner.tag)
    ran = here("resolve", *key, "--succeeded", "1", *SURE)
    assert ran.code == ExitCode.USAGE
    assert "give --status and --body" in ran.err
    ran = here("resolve", *key, "--status", "201", "--body", f"@{file}", *SURE)
    assert ran.code == ExitCode.OK, ran.err
    assert "ana answered 201" in ran.out
    value = here("show", *key, "--bodies", "--json").data["value"]
    headers = {"content-type": "application/json"}
    assert value == {"status": 201, "headers": headers, "body": {"id": "ch_1"}}


def test_an_answer_may_come_from_stdin(executable: str, here: Command, file_shop: Shop) -> None:
    owner = file_shop.unknown("charge", "stdin-1")
    command = ("resolve", file_shop.url, "--tag", owner.tag, "--succeeded", "-", *SAID)
    # Without --yes nobody can be asked: stdin is no terminal.
    refused = here(*command, stdin=b'"paid"')
    assert refused.code == ExitCode.USAGE
    assert "give --yes" in refused.err
    sure = [executable, *command, "--yes"]
    done = subprocess.run(sure, input='"paid"', text=True, capture_output=True)
    assert done.returncode == ExitCode.OK, done.stderr
    assert here("show", *command[1:4], "--bodies", "--json").data["value"] == "paid"


@pytest.mark.parametrize("codec", ["json", "dataclass", "pydantic"])
def test_the_answer_is_stored_for_the_operations_codec(
    here: Command, shop: Shop, codec: str
) -> None:
    owner = shop.unknown("charge", f"codec-{codec}")
    ran = here("resolve", shop.url, "--tag", owner.tag, "--succeeded", "7", "--codec", codec, *SURE)
    assert ran.code == ExitCode.OK
    seen = shop.send(Look(owner.identity.id))
    assert isinstance(seen, Seen)
    assert seen.record is not None
    assert seen.record.body == bytes((1, 1, len(codec))) + codec.encode() + b"7"


def test_release_lets_a_failed_key_run_again(here: Command, shop: Shop) -> None:
    owner = shop.claim("charge", "again-1")
    shop.send(owner.finish("declined", FAILED))
    ran = here("release", shop.url, "charge", "again-1", *SURE)
    assert ran.code == ExitCode.OK
    assert "the next call runs the operation" in ran.out
    again = shop.claim("charge", "again-1")
    assert again.fence > owner.fence
    notes = here("show", shop.url, "charge", "again-1", "--json").data["notes"]
    assert [note.split(" ", 1)[1] for note in notes] == ["ana freed: INC-7: found at the provider"]


@pytest.mark.parametrize("command", [("resolve", "--free"), ("release",)])
def test_a_key_that_is_not_open_is_left_alone(
    here: Command, shop: Shop, command: tuple[str, ...]
) -> None:
    paid = shop.finished("charge", f"done-{command[0]}", "paid")
    held = shop.claim("charge", f"held-{command[0]}")
    name, *rest = command
    for owner, said in ((paid, "it has succeeded"), (held, "an attempt holds it")):
        ran = here(name, shop.url, "--tag", owner.tag, *rest, *SURE)
        assert ran.code == ExitCode.FAILED
        assert said in ran.err
        assert "state" in ran.out
    assert here(name, shop.url, "--tag", "0" * 12, *rest, *SURE).code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--free",), "there is no terminal to ask at: give --yes"),
        (("--free", "--yes", "--why", "x"), "give --by"),
        (("--free", "--yes"), "give --by and --why"),
        (("--free", "--json", *SAID), "--json does not ask: give --yes"),
        (SURE, "give one of --succeeded, --status, --failed and --free"),
        (("--free", "--failed", "x", *SURE), "give one of"),
        (("--free", "--body", "x", *SURE), "--body goes with --status"),
        (("--succeeded", "paid", *SURE), "this is no JSON"),
        (("--succeeded", "@/no/such/file", *SURE), "No such file"),
        (("--status", "99", *SURE), "200<=x<=599"),
        (("--status", "200", *SURE), "is no HTTP request"),
        (("--free", "--by", "a\nb", "--why", "x", "--yes"), "must be text on one line"),
        (("--free", "--by", "ana", "--why", "x" * 2_000, "--yes"), "too long"),
    ],
)
def test_a_decision_that_lacks_something_is_refused_and_changes_nothing(
    here: Command, shop: Shop, options: tuple[str, ...], said: str
) -> None:
    owner = shop.unknown("charge", f"refused-{said}")
    ran = here("resolve", shop.url, "--tag", owner.tag, *options)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert said in ran.err
    assert here("show", shop.url, "--tag", owner.tag, "--json").data["state"] == "unknown"


# --- races: whoever is first wins, and the note says who ---------------------------------------


def test_a_late_finish_before_the_answer_wins(
    here: Command, shop: Shop, meanwhile: Interrupt
) -> None:
    owner = shop.unknown("charge", "late-1")
    meanwhile(lambda: shop.send(owner.finish({"id": "late"})))
    ran = here("resolve", shop.url, "--tag", owner.tag, "--failed", "lost", *SAID)
    assert ran.code == ExitCode.CHANGED
    assert "it was unknown when it was shown and is succeeded now" in ran.err
    states = [line.split()[1] for line in ran.out.splitlines() if line.startswith("state ")]
    assert states == ["unknown", "succeeded"]
    data = here("show", shop.url, "--tag", owner.tag, "--json", "--bodies").data
    assert (data["state"], data["value"], data["notes"]) == ("succeeded", {"id": "late"}, [])


def test_a_late_finish_after_the_decision_is_refused_and_noted(here: Command, shop: Shop) -> None:
    owner = shop.unknown("charge", "late-2")
    ran = here("resolve", shop.url, "--tag", owner.tag, "--failed", "lost", *SURE)
    assert ran.code == ExitCode.OK
    assert shop.send(owner.finish({"id": "late"})) == Lost()
    data = here("show", shop.url, "--tag", owner.tag, "--json").data
    assert data["state"] == "failed"
    (line,) = data["notes"]
    assert "ana failed: INC-7" in line
    assert line.endswith("its late owner then reported: succeeded")


def test_an_owner_that_came_back_and_fell_silent_again_is_looked_at_again(
    here: Command, shop: Shop, meanwhile: Interrupt
) -> None:
    """What was found out before it came back may be wrong by now."""
    owner = shop.unknown("charge", "back-1")
    renewal = Renew(owner.identity.id, owner.claim.owner, owner.fence, 1)
    meanwhile(lambda: shop.send(renewal))
    ran = here("resolve", shop.url, "--tag", owner.tag, "--free", *SAID)
    assert ran.code == ExitCode.CHANGED
    assert "its owner has come back" in ran.err
    assert here("show", shop.url, "--tag", owner.tag, "--json").data["state"] == "unknown"


def test_a_recovery_or_another_operator_before_the_answer_wins(
    here: Command, shop: Shop, meanwhile: Interrupt
) -> None:
    owner = shop.unknown("charge", "race-3")
    recovery = Resolve(owner.identity.id, owner.fence, SUCCEEDED, b"yes", "recover: it happened")
    meanwhile(lambda: shop.send(recovery))
    ran = here("resolve", shop.url, "--tag", owner.tag, "--free", *SAID)
    assert ran.code == ExitCode.CHANGED
    notes = here("show", shop.url, "--tag", owner.tag, "--json").data["notes"]
    assert notes == ["recover: it happened"]


def test_a_takeover_before_the_answer_wins(here: Command, shop: Shop, meanwhile: Interrupt) -> None:
    """Somebody freed the key and a retry has claimed it: its fence is another one."""
    owner = shop.unknown("charge", "race-4")
    free = Resolve(owner.identity.id, owner.fence, State.ABSENT, b"", "bob freed: first")

    def take_over() -> None:
        assert shop.send(free) == Done()
        assert isinstance(shop.send(owner.claim._replace(owner=os.urandom(16))), Claimed)

    meanwhile(take_over)
    ran = here("resolve", shop.url, "--tag", owner.tag, "--failed", "lost", *SAID)
    assert ran.code == ExitCode.CHANGED
    data = here("show", shop.url, "--tag", owner.tag, "--json").data
    assert (data["state"], data["attempt"]) == ("pending", 2)
    assert data["notes"] == ["bob freed: first"]


def test_a_released_key_that_was_taken_over_meanwhile_is_not_released_again(
    here: Command, shop: Shop, meanwhile: Interrupt
) -> None:
    owner = shop.claim("charge", "race-5", ago=MINUTE_US // 2)
    shop.send(owner.finish("declined", FAILED))
    free = Resolve(owner.identity.id, owner.fence, State.ABSENT, b"", "bob freed: first", FAILED)
    meanwhile(lambda: (shop.send(free), shop.claim("charge", "race-5")))
    ran = here("release", shop.url, "--tag", owner.tag, *SAID)
    assert ran.code == ExitCode.CHANGED
    assert here("show", shop.url, "--tag", owner.tag, "--json").data["state"] == "pending"


def test_two_operators_at_once_one_wins(executable: str, here: Command, shop: Shop) -> None:
    owner = shop.unknown("charge", "race-6")
    command = [executable, "resolve", shop.url, "--tag", owner.tag, "--yes", "--json"]
    hosts = [
        subprocess.Popen(
            [*command, "--failed", f"by {who}", "--by", who, "--why", "race"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for who in ("ana", "bob")
    ]
    ended = [(host.communicate(timeout=PATIENCE_SECONDS)[0], host.returncode) for host in hosts]
    won = [json.loads(out)["decided"] for out, _ in ended]
    assert sorted(won) == [False, True]
    winner = ("ana", "bob")[won.index(True)]
    (line,) = here("show", shop.url, "--tag", owner.tag, "--json").data["notes"]
    assert f" {winner} failed: race" in line


# --- at a terminal -----------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "code"), [("y", ExitCode.OK), ("n", ExitCode.FAILED)])
def test_at_a_terminal_it_shows_the_key_and_asks(
    executable: str, here: Command, file_shop: Shop, answer: str, code: ExitCode
) -> None:
    owner = file_shop.unknown("charge", f"asked-{answer}")
    command = [executable, "resolve", file_shop.url, "--tag", owner.tag, "--free"]
    with at_terminal(command) as terminal:
        terminal.expect("Who decides?")
        terminal.type("ana")
        terminal.expect("Why?")
        terminal.type("it never ran")
        seen = terminal.expect("Decide")
        assert "its owner died" in seen
        assert "RUNS the operation" in seen
        assert "silent for 9 min" in seen
        terminal.type(answer)
        terminal.expect("freed" if code is ExitCode.OK else "nothing was changed")
        assert terminal.wait() == code
    state = here("show", file_shop.url, "--tag", owner.tag, "--json").data.get("state")
    assert state == (None if code is ExitCode.OK else "unknown")
