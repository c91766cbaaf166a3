"""The demo's parts one by one: the provider's rules, what is kept, and what the page is told."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncekey.demo.cards import Card
from oncekey.demo.errors import DemoFailed
from oncekey.demo.feed import ENTRIES_MAX, RUNNING, Feed, Seen, name_of
from oncekey.demo.keeping import Keeping
from oncekey.demo.provider.app import BODY_MAX_BYTES, Provider
from oncekey.demo.provider.books import Books, Counts
from oncekey.demo.scene import Got

SECRET = "provider-secret"
GOOD = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "key-1"}
WANTED = {"order": "order-1", "cents": 500}


def asked(books: Books, *requests: tuple[dict[str, str], Any]) -> list[int]:
    """What a provider answers, one request after the other."""

    async def ask() -> list[int]:
        provider = Provider(books, SECRET)
        provider.let_go()  # it makes nobody wait
        transport = httpx.ASGITransport(provider.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://provider") as client:
            return [
                (await client.post("/v1/charges", headers=headers, json=body)).status_code
                for headers, body in requests
            ]

    return asyncio.run(ask())


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path / "provider.db")


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
def test_the_provider_writes_nothing_down_that_it_does_not_accept(
    books: Books, headers: dict[str, str], body: Any, status: int
) -> None:
    assert asked(books, (headers, body)) == [status]
    assert books.totals() == Counts(0, 0)


def test_a_flaky_provider_acts_once_in_three_requests(books: Books) -> None:
    flaky = (GOOD, {**WANTED, "card": Card.FLAKY})
    assert asked(books, flaky, flaky, flaky) == [503, 500, 200]
    assert books.totals() == Counts(asked=3, acted=1)


def test_the_provider_refuses_a_key_that_was_used_for_something_else(books: Books) -> None:
    assert asked(books, (GOOD, WANTED), (GOOD, {**WANTED, "cents": 1})) == [200, 422]
    assert books.totals().acted == 1


def test_a_folder_keeps_its_tokens_and_others_are_random(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, again, two = (Keeping(tmp_path / name) for name in ("one", "one", "two"))
    assert one.accounts == again.accounts
    assert not {a.token for a in one.accounts} & {a.token for a in two.accounts}
    assert (tmp_path / "one" / "accounts.json").stat().st_mode & 0o777 == 0o600


def test_only_a_whole_bearer_token_is_somebody(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    ada = keeping.people[0]
    token = ada.token.encode()
    assert keeping.account_of(b"Bearer " + token) == ada
    for sent in (b"", token, b"Basic " + token, b"Bearer " + token[:-1], b"Bearer \xff"):
        assert keeping.account_of(sent) is None


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "accounts.json").write_text('{"accounts": []}')
    with pytest.raises(DemoFailed, match="take another folder"):
        Keeping(tmp_path)
    assert (tmp_path / "accounts.json").read_text() == '{"accounts": []}'


def test_the_feed_is_bounded_and_knows_what_died(tmp_path: Path) -> None:
    feed = Feed()
    seen = Seen(1, "worker 7", "POST", "/charges", "Ada", "key-1", at=0.0)
    feed.put(seen)
    feed.put(dataclasses.replace(seen, number=2, got=Got.RAN, status=201))
    feed.killed("worker 7")
    assert [one["got"] for one in feed.latest()] == [Got.RAN, Got.KILLED]
    for number in range(ENTRIES_MAX + 5):
        feed.put(dataclasses.replace(seen, server="main", number=number))
    assert len(feed.latest()) == ENTRIES_MAX
    assert {one["got"] for one in feed.latest()} == {RUNNING}


@pytest.mark.parametrize(
    ("status", "replayed", "problem", "got"),
    [
        (201, False, "", Got.RAN),
        (201, True, "", Got.REPLAYED),
        (402, True, "declined", Got.REPLAYED),
        (402, False, "declined", Got.DECLINED),
        (409, False, "in-flight", Got.IN_FLIGHT),
        (422, False, "key-reused", Got.MISMATCH),
        (422, False, "invalid", Got.REFUSED),
        (409, False, "outcome-unknown", Got.REFUSED),
        (502, False, "", Got.FAILED),
        (0, False, "", Got.FAILED),
    ],
)
def test_answers_are_named(status: int, replayed: bool, problem: str, got: Got) -> None:
    assert name_of(status, replayed=replayed, problem=problem) is got
