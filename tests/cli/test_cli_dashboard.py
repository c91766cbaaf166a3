"""`oncekey dashboard`: it serves, its link signs in once, and a signal ends it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest
from tests.cli.command_runner import Start
from tests.cli.conftest import Command

TOKEN = "a token that is long enough"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_link_signs_in_once_and_a_signal_ends_it(
    start: Start, charged: str, how: signal.Signals
) -> None:
    running = start("dashboard", charged, "--port", "0")
    address = running.line().partition(" is at ")[2].partition(". ")[0]
    link = running.line().partition("once: ")[2].strip()
    assert address.startswith("http://127.0.0.1:")
    assert link.startswith(f"{address}/sign-in?code=")
    with (
        httpx.Client(trust_env=False, timeout=60) as browser,
        httpx.Client(trust_env=False, timeout=60) as other,
    ):
        assert browser.get(address).status_code == 401
        assert browser.get(link).status_code == 303
        page = browser.get(address)
        assert page.status_code == 200
        assert "bodies hidden" in page.text
        assert "acct_1" in browser.get(f"{address}/keys").text
        assert other.get(link).status_code == 401
        rebound = {"Host": "evil.example"}
        assert browser.get(address, headers=rebound).status_code == 421
    assert running.end(how) == 0
    assert running.out.empty(), "nothing is logged"
    assert running.err.empty()


def test_the_token_of_the_environment_signs_in(start: Start, charged: str) -> None:
    options = ("--port", "0", "--token-env", "TOKEN", "--read-only", "--bodies", "--by", "ada")
    environment = {"TOKEN": TOKEN, "ONCEKEY_STORE": charged}
    running = start("dashboard", *options, "--json", **environment)
    said = json.loads("".join(iter(running.line, "}\n")) + "}")
    assert said["sign_in"].startswith(f"{said['url']}/sign-in?code=")
    address = said["url"]
    with httpx.Client(trust_env=False, timeout=60) as browser:
        assert browser.post(f"{address}/sign-in", data={"token": TOKEN}).status_code == 303
        page = browser.get(address).text
        assert "read-only" in page
        assert "bodies hidden" not in page
    assert running.end(signal.SIGINT) == 0


def test_what_cannot_be_served_is_refused(here: Command, url: str, charged: str) -> None:
    for arguments, complaint in [
        (["memory://"], "within one process"),
        ([charged, "--token-env", "NOT_SET_AT_ALL"], "NOT_SET_AT_ALL is not set"),
        ([charged, "--by", "x" * 101], "by= must be a name"),
        ([charged, "--host", "203.0.113.7", "--port", "0"], "cannot be had"),
    ]:
        ran = here("dashboard", *arguments)
        assert ran.code == 2, ran.err
        assert complaint in ran.err


def test_a_store_that_does_not_exist_is_not_created(here: Command, tmp_path: Path) -> None:
    ran = here("dashboard", f"sqlite:///{tmp_path / 'none.db'}")
    assert ran.code == 2
    assert list(tmp_path.iterdir()) == []


def test_other_machines_are_let_in_only_with_a_warning(here: Command, charged: str) -> None:
    ran = here("dashboard", charged, "--host", "203.0.113.7", "--port", "0")
    assert "other machines can reach the dashboard" in ran.err
