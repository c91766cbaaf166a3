"""`oncekey verify` where something is wrong: the URL, the ids, a secret, a signal."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

import pytest
from tests.cli.conftest import Command
from tests.verify.json_server import Received, Reply, serving

from oncekey.cli.output import ExitCode
from oncekey.verify import probes
from oncekey.verify.probe import ProbeRun
from oncekey.verify.verdict import Guarantee, Verdict, holds

NEAR = "http://127.0.0.1:1/charges"
ORDER = '{"order": "{{unique}}"}'


class Good:
    guarantee: ClassVar = Guarantee.LOST_RESPONSE
    sends: ClassVar = "a request"

    async def run(self, run: ProbeRun) -> Verdict:
        await run.send((await run.operation()).request())
        return holds(self.guarantee, "it was answered", n=1, window="once")


class Interrupted:
    guarantee: ClassVar = Guarantee.DISCONNECT
    sends: ClassVar = "nothing"

    async def run(self, run: ProbeRun) -> Verdict:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
        raise AssertionError("it was not interrupted")


class Never:
    guarantee: ClassVar = Guarantee.EXPIRY
    sends: ClassVar = "nothing"

    async def run(self, run: ProbeRun) -> Verdict:
        raise AssertionError("it comes after an interruption")


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBES", (Good(),))


def always(reply: Reply) -> Callable[[Received], Reply]:
    return lambda received: reply


def numbered(document: Callable[[int], object]) -> Callable[[Received], Reply]:
    numbers = itertools.count(1)
    return lambda received: Reply(201, document(next(numbers)))


# --- answers that are no success ----------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_that_wants_the_request_again_is_no_success(here: Command, status: int) -> None:
    with serving(always(Reply(status, headers={"Location": "/v2/charges"}))) as url:
        ran = here("verify", url, "-d", ORDER)
    assert ran.code == ExitCode.USAGE
    assert f"answered by {status} and sent on to /v2/charges: give the URL" in ran.out


def test_a_redirect_of_everything_to_one_place_is_no_success(here: Command) -> None:
    with serving(always(Reply(302, headers={"Location": "/login"}))) as url:
        ran = here("verify", url, "-d", ORDER)
    assert ran.code == ExitCode.USAGE
    assert "every operation is answered by 302 and sent on to /login" in ran.out


def test_a_redirect_to_what_was_made_is_a_success(here: Command) -> None:
    numbers = itertools.count(1)

    def made(received: Received) -> Reply:
        return Reply(303, headers={"Location": f"/charges/{next(numbers)}"})

    with serving(made) as url:
        ran = here("verify", url, "-d", ORDER, "--json")
    assert ran.data["effects"] == "different ids in the responses (header:Location)"


# --- ids ----------------------------------------------------------------------------------------


def test_an_id_that_all_operations_share_counts_nothing(here: Command) -> None:
    with serving(numbered(lambda number: {"id": "acct_1", "number": number})) as url:
        ran = here("verify", url, "-d", ORDER, "--json")
        assert ran.data["effects"] is None
        ran = here("verify", url, "-d", ORDER, "--count-id", "$.id")
        assert ran.code == ExitCode.USAGE
        assert "two operations have the same id at $.id, so it does not tell runs apart" in ran.out


def test_the_place_whose_ids_differ_is_taken(here: Command) -> None:
    with serving(numbered(lambda number: {"id": "acct_1", "data": {"id": number}})) as url:
        ran = here("verify", url, "-d", ORDER, "--json")
    assert ran.data["effects"] == "different ids in the responses ($.data.id)"


def test_an_api_that_takes_the_request_only_once_stops_it(here: Command) -> None:
    orders: set[str] = set()

    def once_only(received: Received) -> Reply:
        order = json.loads(received.body)["order"]
        is_known = order in orders
        orders.add(order)
        return Reply(400 if is_known else 201, {"id": order})

    with serving(once_only) as url:
        ran = here("verify", url, "-d", '{"order": "the same"}')
    assert ran.code == ExitCode.USAGE
    assert "a second operation, with a key of its own, is answered with 400" in ran.out
    assert "needs a placeholder, such as {{unique}}" in ran.out


# --- what used to end in a bug ------------------------------------------------------------------


def test_json_that_is_nested_too_deeply_is_no_json(here: Command) -> None:
    with serving(always(Reply(200, raw=b"[" * 100_000))) as url:
        ran = here("verify", url, "-d", ORDER, "--json")
        assert ran.data["effects"] is None
        ran = here("verify", url, "-d", ORDER, "--count-url", "/ledger")
        assert "the answer is not JSON" in ran.out + ran.err


def test_a_host_that_cannot_be_one_is_not_reached(here: Command) -> None:
    ran = here("verify", "http://foo..bar/", "--yes", "-d", ORDER)
    assert ran.code == ExitCode.FAILED
    assert "cannot connect to http://foo..bar" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((NEAR, "--count-command", "sh -c 'open"), "--count-command: No closing quotation"),
        (
            (NEAR, "--count-url", "http://192.0.2.1/count"),
            "hundreds of requests, to count effects, would be sent to http://192.0.2.1",
        ),
    ],
)
def test_a_command_that_must_not_run_is_told_in_one_line(
    here: Command, arguments: tuple[str, ...], message: str
) -> None:
    ran = here("verify", *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert message in ran.err


def test_durations_of_a_file_have_the_ranges_of_the_options(here: Command, tmp_path: Path) -> None:
    file = tmp_path / "charges.toml"
    file.write_text(f'url = "{NEAR}"\nkeep = "90d"\n')
    ran = here("verify", "--config", str(file), "--dry-run")
    assert ran.code == ExitCode.USAGE
    assert "keep: 7.776e+06 s is not from 0.1 to 600 s" in ran.err


def test_a_key_header_that_is_given_wins_over_the_documents(here: Command, tmp_path: Path) -> None:
    key = {"name": "X-Idempotency-Key", "in": "header", "schema": {"type": "string"}}
    operation = {"parameters": [key], "responses": {"201": {"description": "made"}}}
    file = tmp_path / "openapi.json"
    paths = {"/orders": {"post": operation}}
    info = {"title": "shop", "version": "1"}
    file.write_text(json.dumps({"openapi": "3.1.0", "info": info, "paths": paths}))
    told = ("http://127.0.0.1:1", "--openapi", str(file), "--operation", "POST /orders")
    assert "-H 'X-Idempotency-Key: " in here("verify", *told, "--dry-run").out
    ran = here("verify", *told, "--dry-run", "--key-header", "My-Key")
    assert "-H 'My-Key: " in ran.out
    assert "Idempotency-Key" not in ran.out


# --- secrets ------------------------------------------------------------------------------------


def test_a_token_with_a_line_break_is_refused_without_being_shown(
    here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "tok_with_break\n")
    ran = here("verify", NEAR, "--caller", "Authorization: Bearer $TOKEN")
    assert ran.code == ExitCode.USAGE
    assert "Authorization of the caller: its value has a line break" in ran.err
    assert "tok_with_break" not in ran.out + ran.err


@pytest.mark.parametrize(
    "name", ["X-Access-Token", "Ocp-Apim-Subscription-Key", "apikey", "X-Session", "X-Signature"]
)
def test_a_header_whose_name_tells_of_a_secret_is_not_shown(here: Command, name: str) -> None:
    ran = here("verify", NEAR, "-H", f"{name}: swordfish", "--dry-run")
    assert f"{name}: <{name} of the caller>" in ran.out
    assert "swordfish" not in ran.out


# --- Ctrl-C -------------------------------------------------------------------------------------


def test_an_interruption_keeps_what_was_found_until_then(
    here: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probes, "PROBES", (Good(), Interrupted(), Never()))
    junit = tmp_path / "verify.xml"
    with serving(numbered(lambda number: {"id": number})) as url:
        ran = here("verify", url, "-d", ORDER, "--junit", str(junit))
    assert ran.code == ExitCode.INTERRUPTED
    assert "it was answered" in ran.out
    assert "1 hold, 2 not observable" in ran.out
    cases = list(ElementTree.parse(junit).iter("testcase"))
    assert len(cases) == 3
    assert "Traceback" not in ran.err
