"""The demo's naive handler: right as long as nothing goes wrong, and honest about the rest."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import oncekey.demo.naive
from oncekey.demo.api.models import BODY_MAX_BYTES
from oncekey.demo.cards import Card
from oncekey.demo.provider.ledger import Counts
from oncekey.http.exchange import UNPROTECTED

if TYPE_CHECKING:
    from tests.demo.conftest import Api, Running

PATIENCE_SECONDS = 240


def charge(api: Api, key: str | None, **wanted: Any) -> httpx.Response:
    return api.post("/naive/charges", key, {"order": key, "cents": 4_900, **wanted})


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_a_retry_after_the_answer_is_a_replay(demo: Running, ada: Api) -> None:
    """What the tutorials test, and what works."""
    first, again = charge(ada, "naive-1"), charge(ada, "naive-1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["x-idempotency-replayed"] == "true"
    assert "x-idempotency-replayed" not in first.headers
    assert demo.ledger.counts("naive-1") == Counts(1, 1)


def test_a_retry_before_the_answer_charges_again(demo: Running, ada: Api) -> None:
    answers: list[httpx.Response] = []

    def first() -> None:
        answers.append(charge(ada, "naive-2", card=Card.SLOW))

    running = threading.Thread(target=first)
    running.start()
    until(lambda: demo.ledger.counts("naive-2").acted == 1)
    answers.append(charge(ada, "naive-2", card=Card.SLOW))
    running.join(PATIENCE_SECONDS)
    assert [answer.status_code for answer in answers] == [201, 201]
    assert len({answer.json()["id"] for answer in answers}) == 2
    assert demo.ledger.counts("naive-2") == Counts(asked=2, acted=2)
    # From now on both callers are told of whichever was stored first.
    assert charge(ada, "naive-2").json() in [answer.json() for answer in answers]


def test_the_handlers_share_no_keys_and_no_rows(demo: Running, ada: Api) -> None:
    assert ada.charge("naive-3").status_code == 201
    theirs = charge(ada, "naive-3")
    assert theirs.status_code == 201
    assert "x-idempotency-replayed" not in theirs.headers
    assert theirs.json()["id"] not in ada.get("/ledger").text


def test_no_oncekey_is_in_the_way_of_the_naive_handler(ada: Api) -> None:
    answer = charge(ada, "naive-4")
    names = {name.lower() for name in answer.headers}
    assert UNPROTECTED.decode() not in names
    assert not [name for name in names if name.startswith("x-idempotency")]


def test_the_naive_modules_import_only_the_demo() -> None:
    folder = Path(oncekey.demo.naive.__file__).parent
    imported = {
        node.module
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("oncekey")
    }
    assert imported
    assert [name for name in imported if not (name or "").startswith("oncekey.demo.")] == []


def test_the_naive_handler_gives_back_no_more_than_was_paid(demo: Running, ada: Api) -> None:
    path = f"/naive/charges/{charge(ada, 'naive-5').json()['id']}/refunds"
    first, again = (ada.post(path, "naive-5-a", {"cents": 4_000}) for _ in range(2))
    assert first.status_code == 201
    assert again.json() == first.json()
    assert ada.post(path, "naive-5-b", {"cents": 901}).status_code == 422
    assert ada.post(path, "naive-5-c", {"cents": 900}).status_code == 201
    assert demo.ledger.counts("naive-5", "refund") == Counts(2, 2)


def test_charges_of_the_naive_handler_belong_to_their_caller(ada: Api, grace: Api) -> None:
    mine, hers = charge(ada, "naive-6"), charge(grace, "naive-6")
    assert mine.json()["id"] != hers.json()["id"]
    path = f"/naive/charges/{mine.json()['id']}/refunds"
    assert grace.post(path, "naive-6-a", {"cents": 1}).status_code == 404


@pytest.mark.parametrize(
    ("key", "wanted", "status"),
    [
        (None, {}, 422),
        ("k" * 256, {}, 422),
        ("bad-1", {"cents": 0}, 422),
        ("bad-2", {"card": "card_gold"}, 422),
        ("bad-3", {"card": "x" * BODY_MAX_BYTES}, 413),
    ],
)
def test_the_naive_handler_validates_as_ours_does(
    demo: Running, ada: Api, key: str | None, wanted: dict[str, Any], status: int
) -> None:
    answer = charge(ada, key, order="naive-bad", **wanted)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert demo.ledger.counts("naive-bad").asked == 0


def test_the_naive_handler_authenticates_as_ours_does(demo: Running, stranger: Api) -> None:
    assert charge(stranger, "naive-7").status_code == 401
    assert demo.ledger.counts("naive-7").asked == 0


def test_a_declined_card_is_tried_again(demo: Running, ada: Api) -> None:
    answers = [charge(ada, "naive-8", card=Card.DECLINED) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [402, 402]
    assert demo.ledger.counts("naive-8") == Counts(asked=2, acted=0, declined=2)
