"""`list`, `show` and `stats` on SQLite and PostgreSQL: what operators find, and how."""

from __future__ import annotations

import signal
from typing import Any
from uuid import UUID

import pytest
from tests.cli.command_runner import PATIENCE_SECONDS, Start, at_terminal
from tests.cli.conftest import Command, Ran
from tests.cli.operator_shop import DAY_US, FAILED, MINUTE_US, ROUTE, Shop
from tests.support.servers import Postgres, require

from oncekey import HttpAnswer
from oncekey.cli import password_redaction
from oncekey.cli.commands import list_keys
from oncekey.cli.output import ExitCode
from oncekey.core import search
from oncekey.core.codec import pack_error
from oncekey.core.commands import Unknown
from oncekey.core.record import State
from oncekey.core.step_format import intent_facts, pack_step
from oncekey.stores.postgres import migrate

SECRET_BODY = '{"card": "Ada!"}'


def tags(ran: Ran) -> list[str]:
    assert ran.code == ExitCode.OK, ran.err
    return [key["tag"] for key in ran.data["keys"]]


# --- list --------------------------------------------------------------------------------------


def test_list_filters_by_every_column_newest_first(here: Command, shop: Shop) -> None:
    mine = ("list", shop.url, "--json", "--scope", "acct_list")
    dead = shop.unknown("charge", "k1", scope="acct_list", raw=True)
    paid = shop.finished("http", "k2", HttpAnswer(201), scope="acct_list", origin=ROUTE)
    open_ = shop.claim("refund", "k3", scope="acct_list")
    old = shop.claim("charge", "k4", scope="acct_list", retry_safe=True, ago=3 * DAY_US)
    assert tags(here(*mine)) == [open_.tag, paid.tag, dead.tag]
    assert tags(here(*mine, "--expired")) == [open_.tag, paid.tag, dead.tag, old.tag]
    states = ("--state", "unknown", "--state", "pending")
    assert tags(here(*mine, *states)) == [open_.tag, dead.tag]
    assert tags(here(*mine, "--operation", "refund")) == [open_.tag]
    assert tags(here(*mine, "--route", "POST /char")) == [paid.tag]
    assert tags(here(*mine, "--key", "k1")) == [dead.tag]
    assert tags(here("list", shop.url, "--json", "--tag", paid.tag[:10])) == [paid.tag]


def test_list_prints_a_table_with_route_and_status(here: Command, shop: Shop) -> None:
    paid = shop.finished("http", "table", HttpAnswer(201), scope="acct_table", origin=ROUTE)
    ran = here("list", shop.url, "--scope", "acct_table")
    head, row, last = ran.out.splitlines()
    assert head.split() == [
        "tag",
        "state",
        "age",
        "attempt",
        "scope",
        "operation",
        "route",
        "status",
    ]
    assert row.startswith(f"{paid.tag}  succeeded")
    assert row.endswith("POST /charges (create_charge)  201")
    assert last == "1 key; looked at all claims"


def test_list_goes_on_after_a_page(here: Command, shop: Shop) -> None:
    owners = [shop.claim("charge", f"page-{n}", scope="acct_page") for n in range(5)]
    newest = [owner.tag for owner in reversed(owners)]
    mine = ("list", shop.url, "--scope", "acct_page", "--limit", "2")
    first = here(*mine, "--json")
    second = here(*mine, "--json", "--after", first.data["next"])
    third = here(*mine, "--json", "--after", second.data["next"])
    assert tags(first) + tags(second) + tags(third) == newest
    assert f"more: --after {first.data['next']}" in here(*mine).out
    every = here(*mine, "--all").out
    assert [tag for tag in newest if tag in every] == newest
    assert every.endswith("5 keys; looked at all claims\n")
    pages = here(*mine, "--all", "--json").out.splitlines()
    assert len(pages) >= 3


def test_an_empty_page_says_how_far_it_has_looked(
    here: Command, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that has looked at its share of claims is not the end of the store."""
    owner = shop.unknown("charge", "deep", scope="acct_deep")
    for n in range(3):
        shop.claim("charge", f"above-{n}", scope="acct_above")
    monkeypatch.setattr("oncekey.core.search.LOOKED_AT_MAX", 2)
    ran = here("list", shop.url, "--scope", "acct_deep")
    assert "0 keys; looked at the newest 2 claims, back to 20" in ran.out
    assert "go on with --after" in ran.out
    assert owner.tag in here("list", shop.url, "--scope", "acct_deep", "--all").out


def test_list_says_where_else_to_look_for_a_key(here: Command, shop: Shop) -> None:
    shop.claim("charge", "not-raw")
    assert "oncekey show --key" in here("list", shop.url, "--key", "not-raw").out


def test_text_of_the_store_cannot_command_the_terminal(here: Command, shop: Shop) -> None:
    owner = shop.claim("charge", "esc", scope="acct_esc")
    evil = owner.claim._replace(
        id=b"\x1b" * 16, owner=b"e" * 16, scope="acct_esc", label="\x1b[2Jcharge", key="[bold]\r"
    )
    shop.send(evil)
    ran = here("list", shop.url, "--scope", "acct_esc")
    assert "\\x1b[2Jcharge" in ran.out
    assert "[bold]\\r" in ran.out
    assert "\x1b" not in ran.out + here("show", shop.url, "--tag", "1b1b1b1b1b1b").out


def test_watch_prints_a_document_per_change_until_a_signal(start: Start, file_shop: Shop) -> None:
    first = file_shop.claim("charge", "watch-1")
    running = start("list", file_shop.url, "--watch", "0.2", "--json")
    assert [key["state"] for key in running.round()["keys"]] == ["pending"]
    file_shop.send(first.finish("paid"))
    assert [key["state"] for key in running.round()["keys"]] == ["succeeded"]
    assert running.end(signal.SIGINT) == ExitCode.OK
    assert running.out.empty()


def test_watch_waits_for_a_store_that_is_down_at_the_start(start: Start) -> None:
    with require(lambda: Postgres(fast=True)) as postgres:
        migrate(postgres.url())
        postgres.stop("immediate")
        running = start("list", postgres.url(), "--watch", "0.5", "--json")
        assert "tried again in 500ms" in running.err.get(timeout=PATIENCE_SECONDS)
        postgres.start()
        assert running.round()["keys"] == []
        assert running.end(signal.SIGINT) == ExitCode.OK


def test_watch_draws_the_page_again_at_a_terminal(executable: str, file_shop: Shop) -> None:
    first = file_shop.claim("charge", "draw-1")
    command = [executable, "list", file_shop.url, "--watch", "0.2"]
    with at_terminal(command, TERM="xterm") as terminal:
        terminal.expect(first.tag)
        second = file_shop.claim("charge", "draw-2")
        terminal.expect(second.tag)
        assert terminal.end(signal.SIGTERM) == ExitCode.OK


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--watch", "sqlite:///x.db"), "put the URL before --watch"),
        (("--watch", "0"), "not from 0.2 to 3600 seconds"),
        (("--watch", "--all"), "newest page"),
        (("--state", "done"), "'done' is not one of"),
        (("--tag", "xyz"), "is no tag"),
        (("--after", "yesterday"), "not where a page has ended"),
        (("--limit", "0"), "1<=x<=1000"),
    ],
)
def test_wrong_options_of_list_are_refused(
    here: Command, url: str, options: tuple[str, ...], said: str
) -> None:
    here("migrate", url)
    ran = here("list", url, *options)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert said in ran.err


def test_watch_goes_on_every_two_seconds_by_default() -> None:
    assert list_keys.every_option(None, None, list_keys.EVERY_DEFAULT) == 2  # type: ignore[arg-type]


# --- show --------------------------------------------------------------------------------------


def test_show_of_an_http_key_has_its_route_status_and_headers(here: Command, shop: Shop) -> None:
    answer = HttpAnswer(201, SECRET_BODY)
    paid = shop.finished("http", "web-1", answer, scope="acct_web", origin=ROUTE)
    text = here("show", shop.url, "--tag", paid.tag).out
    for row in (
        "state           succeeded",
        "request         POST /charges (create_charge)",
        "response        201",
        "content-type  application/json",
        "body            (object, 16 bytes; --bodies shows it)",
    ):
        assert row in text
    assert "Ada!" not in text
    assert "codec" not in text
    assert SECRET_BODY in here("show", shop.url, "--tag", paid.tag, "--bodies").out


def test_show_redacts_answers_steps_and_arguments(here: Command, shop: Shop) -> None:
    owner = shop.claim("charge", "red-1")
    step = pack_step({"external_id": "ch_7"}, b"\x01\x01\x04json" + SECRET_BODY.encode())
    shop.with_step(owner, "pay", True, step)
    intent = pack_step({"key": "ok1-7"}, b"\x01\x01\x04json" + SECRET_BODY.encode())
    shop.with_step(owner, "ship", False, intent)
    shop.send(owner.finish({"card": "Ada!"}))
    look = ("show", shop.url, "charge", "red-1")
    data = here(*look, "--json")
    hidden = {"type": "object", "bytes": 16, "redacted": True}
    assert data.data["value"] == hidden
    pay, ship = data.data["steps"]
    assert (pay["value"], pay["external_id"]) == (hidden, "ch_7")
    assert (ship["request"], ship["intent"]) == (hidden, "ok1-7")
    text = here(*look).out
    assert "Ada!" not in data.out + text
    assert 'sent with the key ok1-7, or "ok1-7" in quotes by a client that quotes keys' in text
    assert here(*look, "--json", "--bodies").data["steps"][0]["value"] == {"card": "Ada!"}


def test_show_prints_the_child_uuid_of_an_unfinished_step_where_it_is_known(
    here: Command, shop: Shop
) -> None:
    owner = shop.claim("charge", "uuid-1")
    shop.with_step(owner, "old", False, pack_step({"key": "ok1-7"}))  # by an older release
    shop.with_step(owner, "new", False, pack_step(intent_facts("ok1-8", UUID(int=8))))
    look = ("show", shop.url, "charge", "uuid-1")
    uuids = [step["child_uuid"] for step in here(*look, "--json").data["steps"]]
    assert uuids == [None, str(UUID(int=8))]
    text = here(*look).out
    assert f'"ok1-8" in quotes by a client that quotes keys, or the UUID {UUID(int=8)} by' in text
    assert text.count("UUID") == 2
    assert "None" not in text


@pytest.mark.parametrize("how", ["given up", "said by its owner"])
def test_show_never_calls_an_unknown_key_finished(here: Command, shop: Shop, how: str) -> None:
    """A claim has given it up, or its owner has said that it does not know."""
    owner = shop.unknown("charge", f"open-{how}", scope="acct_open")
    if how == "given up":
        assert isinstance(shop.send(owner.claim._replace(owner=b"another".ljust(16))), Unknown)
    else:
        lost = pack_error(KeyboardInterrupt())
        shop.send(owner.finish(None, State.UNKNOWN)._replace(body=lost))
    look = ("show", shop.url, "--tag", owner.tag)
    data, text = here(*look, "--json").data, here(*look).out
    assert (data["state"], data["finished_at"]) == ("unknown", None)
    assert "finished" not in text
    assert "lease until" in text
    listed = here("list", shop.url, "--json", "--tag", owner.tag).data["keys"]
    assert [key["finished_at"] for key in listed] == [None]


def test_show_finds_a_client_key_without_its_operation_and_scope(here: Command, shop: Shop) -> None:
    owner = shop.unknown("http", "client-1", scope="acct_client", origin=ROUTE)
    ran = here("show", shop.url, "--key", "client-1", "--json")
    assert (ran.code, ran.data["tag"]) == (ExitCode.OK, owner.tag)
    assert (ran.data["scope"], ran.data["route"]) == ("acct_client", "POST /charges")
    by_scope = here("show", shop.url, "--key", "client-1", "--scope", "acct_client", "--json")
    assert by_scope.data["tag"] == owner.tag
    nobody = here("show", shop.url, "--key", "client-1", "--scope", "acct_nobody")
    assert nobody.code == ExitCode.NOT_FOUND
    assert "pairs of scope and operation" in nobody.out


def test_show_of_a_client_key_that_two_callers_use_lists_both(here: Command, shop: Shop) -> None:
    owners = [shop.claim("charge", "twice", scope=f"acct_{n}", raw=n == 1) for n in (1, 2)]
    ran = here("show", shop.url, "--key", "twice")
    assert ran.code == ExitCode.USAGE
    assert all(owner.tag in ran.out for owner in owners)
    assert "--tag" in ran.out
    several = here("show", shop.url, "--key", "twice", "--json").data["several"]
    assert {one["tag"] for one in several} == {owner.tag for owner in owners}


def test_show_history_of_a_released_key_has_its_failure(here: Command, shop: Shop) -> None:
    owner = shop.claim("charge", "mended")
    shop.send(owner.finish("declined", FAILED))
    decided = ("--by", "ana", "--why", "card unblocked", "--yes")
    assert here("release", shop.url, "charge", "mended", *decided).code == ExitCode.OK
    ran = here("show", shop.url, "charge", "mended", "--history")
    assert ran.code == ExitCode.NOT_FOUND
    assert "ana freed: card unblocked" in ran.out
    assert "failed (a past generation)" in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tag", "1", "--key", "k"),
        ("charge", "k", "--tag", "1"),
        ("charge",),
        ("a", "b", "c", "d"),
    ],
)
def test_a_key_must_be_chosen_in_one_way(
    here: Command, url: str, arguments: tuple[str, ...]
) -> None:
    ran = here("show", url, *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "give OPERATION and KEY, or --tag, or --key" in ran.err


# --- stats -------------------------------------------------------------------------------------


def test_stats_count_and_warn(here: Command, shop: Shop) -> None:
    shop.unknown("charge", "stats-1")
    data = here("stats", shop.url, "--json").data
    assert data["unknown"] >= 1
    assert data["complete"] is True
    assert any("list --state unknown" in warning for warning in data["warnings"])
    text = here("stats", shop.url).out
    assert "keys to be decided, among all claims" in text
    assert "WARNING: " in text


def test_stats_warn_of_a_sweeper_that_is_behind(here: Command, shop: Shop) -> None:
    shop.claim("charge", "garbage", retry_safe=True, ago=10 * DAY_US + MINUTE_US)
    warnings = here("stats", shop.url, "--json").data["warnings"]
    assert any("the sweeper is behind by 8 d" in warning for warning in warnings), warnings


# --- the store ---------------------------------------------------------------------------------


def test_every_command_takes_its_store_from_the_environment(
    here: Command, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = shop.claim("charge", "env-1")
    monkeypatch.setenv("ONCEKEY_STORE", shop.url)
    assert here("list", "--tag", owner.tag, "--json").data["keys"][0]["tag"] == owner.tag
    assert here("show", "charge", "env-1", "--json").data["tag"] == owner.tag
    assert here("show", "--tag", owner.tag, "--json").data["tag"] == owner.tag
    assert here("show", "--key", "env-1", "--json").data["tag"] == owner.tag
    for command in ("sweep", "migrate", "stats"):
        assert here(command).code == ExitCode.OK
    monkeypatch.delenv("ONCEKEY_STORE")
    words: Any
    for words in (("sweep",), ("stats",), ("show", "charge", "k"), ("release", "--tag", "1")):
        ran = here(*words)
        assert ran.code == ExitCode.USAGE
        assert "ONCEKEY_STORE" in ran.err


def test_a_password_in_the_environment_is_not_repeated(
    here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_redaction, "_known", set())
    for url in ("postgresql://bob:hunter-two@127.0.0.1:1/shop", "postgresql://bob:hunter two@[x"):
        monkeypatch.setenv("ONCEKEY_STORE", url)
        for words in (("stats",), ("list",), ("show", "charge", "k")):
            ran = here(*words)
            assert ran.code in (ExitCode.FAILED, ExitCode.USAGE)
            assert "hunter" not in ran.err
            assert "two" not in ran.err
    # A driver may repeat it anywhere.
    assert "hunter" not in password_redaction.redact_remembered(
        "FATAL: user bob, hunter two is wrong"
    )


def test_the_limits_of_a_page_are_those_of_the_library() -> None:
    assert search.PAGE_LIMIT_DEFAULT <= search.PAGE_LIMIT_MAX <= search.LOOKED_AT_MAX
