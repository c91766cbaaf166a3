"""The demo's components: the provider, the data directory, and the request log."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncekey.demo import DemoFailed
from oncekey.demo.cards import Card
from oncekey.demo.data_dir import DataDir
from oncekey.demo.handlers import Handler
from oncekey.demo.page.api_reference import api_reference
from oncekey.demo.provider.ledger import Counts, ProviderLedger, Wanted
from oncekey.demo.provider.provider_app import BODY_MAX_BYTES, Provider
from oncekey.demo.request_log import (
    ENTRIES_MAX,
    RUNNING,
    LoggedRequest,
    RequestLog,
    kind_of_response,
)
from oncekey.demo.scenario_result import ResponseKind

SECRET = "provider-secret"
GOOD = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "key-1"}
WANTED = {"order": "order-1", "cents": 500}


def asked(ledger: ProviderLedger, *requests: tuple[dict[str, str], Any]) -> list[int]:
    """The statuses of a provider's responses to these requests, one after the other."""

    async def ask() -> list[int]:
        provider = Provider(ledger, SECRET)
        provider.stop_waiting()  # it does not pause
        transport = httpx.ASGITransport(provider.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://provider") as client:
            return [
                (await client.post("/v1/charges", headers=headers, json=body)).status_code
                for headers, body in requests
            ]

    return asyncio.run(ask())


@pytest.fixture
def ledger(tmp_path: Path) -> ProviderLedger:
    return ProviderLedger(tmp_path / "provider.db")


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, WANTED, 401),
        ({**GOOD, "Authorization": "Bearer other"}, WANTED, 401),
        ({**GOOD, "Idempotency-Key": ""}, WANTED, 400),
        ({**GOOD, "Idempotency-Key": "k" * 256}, WANTED, 400),
        (GOOD, {"order": "order-1"}, 400),
        (GOOD, ["order-1"], 400),
        (GOOD, {**WANTED, "card": "card_gold"}, 400),
        (GOOD, {**WANTED, "more": "x" * BODY_MAX_BYTES}, 413),
    ],
)
def test_the_provider_records_no_refused_request(
    ledger: ProviderLedger, headers: dict[str, str], body: Any, status: int
) -> None:
    assert asked(ledger, (headers, body)) == [status]
    assert ledger.overview(10).orders == []


def test_a_flaky_provider_acts_once_in_three_requests(ledger: ProviderLedger) -> None:
    flaky = (GOOD, {**WANTED, "card": Card.FLAKY})
    assert asked(ledger, flaky, flaky, flaky) == [503, 500, 200]
    assert ledger.counts("order-1") == Counts(asked=3, acted=1)


def test_a_flaky_provider_acts_twice_for_an_order_whose_keys_differ(ledger: ProviderLedger) -> None:
    """The card misbehaves by the order: a caller that sends a new key each time gets on, too."""
    body = {**WANTED, "card": Card.FLAKY}
    tries = [({**GOOD, "Idempotency-Key": f"key-{n}"}, body) for n in (1, 2, 3)]
    assert asked(ledger, *tries) == [503, 500, 200]
    assert ledger.counts("order-1") == Counts(asked=3, acted=2)


def test_the_totals_of_the_ledger_are_the_sums_of_its_orders(ledger: ProviderLedger) -> None:
    def play(key: str, order: str, *, handler: Handler = Handler.GUARDED, **more: Any) -> None:
        wanted = Wanted(
            key, more.get("kind", "charge"), order, 100, more.get("card", Card.OK), handler
        )
        ledger.note(wanted)
        ledger.act(wanted)

    play("key-1", "order-1")
    play("key-1", "order-1")  # its key is known: no effect
    play("key-2", "order-1", kind="refund")
    play("key-3", "order-2", card=Card.DECLINED)
    play("key-7", "order-1", kind="shipment")
    for key in ("key-4", "key-5"):
        play(key, "order-1", handler=Handler.NAIVE)
    ledger.note(Wanted("key-6", "charge", "order-3", 100, handler=Handler.NAIVE))
    found = ledger.overview(10)
    assert found.totals == {
        Handler.GUARDED: {"asked": 5, "charged": 1, "refunded": 1, "shipped": 1, "declined": 1},
        Handler.NAIVE: {"asked": 3, "charged": 2, "refunded": 0, "shipped": 0, "declined": 0},
    }
    assert found.count == len(found.orders) == 6
    for handler, totals in found.totals.items():
        mine = [one for one in found.orders if one["handler"] == handler]
        assert sum(one["asked"] for one in mine) == totals["asked"]
        moved = totals["charged"] + totals["refunded"] + totals["shipped"]
        assert sum(one["acted"] for one in mine) == moved
        assert sum(one["declined"] for one in mine) == totals["declined"]
    assert [one["cents"] for one in found.orders] == [0, 200, 100, 0, 100, 100]
    assert ledger.overview(2).count == 6
    assert ledger.overview(2).orders == found.orders[:2]


def test_a_ledger_of_another_release_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "provider.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute('CREATE TABLE requests (id INTEGER PRIMARY KEY, key, kind, "order")')
    with pytest.raises(DemoFailed, match="take another folder"):
        ProviderLedger(file)


def test_the_provider_refuses_a_key_that_was_used_for_something_else(
    ledger: ProviderLedger,
) -> None:
    assert asked(ledger, (GOOD, WANTED), (GOOD, {**WANTED, "cents": 1})) == [200, 422]
    assert ledger.counts("order-1").acted == 1


def test_a_data_dir_keeps_its_tokens_and_another_has_others(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, again, two = (DataDir(tmp_path / name) for name in ("one", "one", "two"))
    assert one.accounts == again.accounts
    assert not {a.token for a in one.accounts} & {a.token for a in two.accounts}
    assert (tmp_path / "one" / "accounts.json").stat().st_mode & 0o777 == 0o600


def test_only_a_whole_bearer_token_gives_an_account(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path)
    ada = data_dir.people[0]
    token = ada.token.encode()
    assert data_dir.account_of(b"Bearer " + token) == ada
    for sent in (b"", token, b"Basic " + token, b"Bearer " + token[:-1], b"Bearer \xff"):
        assert data_dir.account_of(sent) is None


def test_a_data_dir_refuses_a_foreign_accounts_file(tmp_path: Path) -> None:
    (tmp_path / "accounts.json").write_text('{"accounts": []}')
    with pytest.raises(DemoFailed, match="take another folder"):
        DataDir(tmp_path)
    assert (tmp_path / "accounts.json").read_text() == '{"accounts": []}'


def test_the_request_log_is_bounded_and_marks_killed_requests(tmp_path: Path) -> None:
    request_log = RequestLog()
    seen = LoggedRequest(1, "worker 7", "POST", "/charges", "Ada", "key-1", at=0.0)
    request_log.put(seen)
    request_log.put(dataclasses.replace(seen, number=2, got=ResponseKind.RAN, status=201))
    request_log.killed("worker 7")
    assert [one["got"] for one in request_log.latest()] == [ResponseKind.RAN, ResponseKind.KILLED]
    for number in range(ENTRIES_MAX + 5):
        request_log.put(dataclasses.replace(seen, server="main", number=number))
    assert len(request_log.latest()) == ENTRIES_MAX
    assert {one["got"] for one in request_log.latest()} == {RUNNING}


def test_the_request_log_counts_each_handlers_requests() -> None:
    request_log = RequestLog()
    ours = LoggedRequest(1, "main", "POST", "/charges", "Ada", "key-1", at=0.0)
    naive = dataclasses.replace(ours, number=2, path="/naive/charges")
    for request in (ours, naive, dataclasses.replace(naive, number=3)):
        request_log.put(request)
    request_log.put(dataclasses.replace(naive, got=ResponseKind.RAN, status=201))
    assert request_log.totals(Handler.GUARDED) == {RUNNING: 1}
    assert request_log.totals(Handler.NAIVE) == {ResponseKind.RAN: 1, RUNNING: 1}
    every = [request_log.totals(handler) for handler in Handler]
    assert sum(sum(one.values()) for one in every) == len(request_log.latest())


def test_a_page_without_routes_is_still_a_page() -> None:
    text = {"title": "<b>", "description": '"&'}
    shown = api_reference({"info": text, "paths": {}})
    assert "<h1>&lt;b&gt; API</h1><p>&quot;&amp;</p>" in shown


@pytest.mark.parametrize(
    ("status", "replayed", "problem", "got"),
    [
        (201, False, "", ResponseKind.RAN),
        (201, True, "", ResponseKind.REPLAYED),
        (402, True, "declined", ResponseKind.REPLAYED),
        (402, False, "declined", ResponseKind.DECLINED),
        (409, False, "in-flight", ResponseKind.IN_FLIGHT),
        (422, False, "key-reused", ResponseKind.MISMATCH),
        (422, False, "invalid", ResponseKind.REFUSED),
        (409, False, "outcome-unknown", ResponseKind.REFUSED),
        (502, False, "", ResponseKind.FAILED),
        (0, False, "", ResponseKind.FAILED),
    ],
)
def test_responses_are_classified(
    status: int, replayed: bool, problem: str, got: ResponseKind
) -> None:
    assert kind_of_response(status, replayed=replayed, problem=problem) is got
