"""The demo's payments API: what it does, what it refuses, and what each caller sees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from oncekey.demo.api.models import BODY_MAX_BYTES, CENTS_MAX
from oncekey.demo.cards import Card
from oncekey.demo.provider.ledger import Counts

if TYPE_CHECKING:
    from tests.demo.conftest import Api, Running


def test_a_charge_is_made_once_and_is_in_both_ledgers(demo: Running, ada: Api) -> None:
    first, again = ada.charge("once-1"), ada.charge("once-1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["x-idempotency-replayed"] == "true"
    assert demo.ledger.counts("once-1") == Counts(1, 1)
    made = first.json()
    assert [one["id"] for one in ada.get("/charges").json() if one["order"] == "once-1"] == [
        made["id"]
    ]
    assert [one["payment"] for one in ada.get("/ledger").json() if one["order"] == "once-1"] == [
        made["payment"]
    ]


def test_a_refund_is_made_once_and_never_more_than_was_paid(demo: Running, ada: Api) -> None:
    charge = ada.charge("back-1").json()["id"]
    before = ada.get("/accounts/me").json()
    path = f"/charges/{charge}/refunds"
    first, again = (ada.post(path, "back-1-a", {"cents": 4_000}) for _ in range(2))
    assert first.status_code == 201
    assert again.json() == first.json()
    too_much = ada.post(path, "back-1-b", {"cents": 901})
    assert too_much.status_code == 422
    assert too_much.json()["type"].endswith(":too-much")
    assert ada.post(path, "back-1-c", {"cents": 900}).status_code == 201
    after = ada.get("/accounts/me").json()
    assert after["refunded_cents"] - before["refunded_cents"] == 4_900
    assert demo.ledger.counts("back-1", "refund") == Counts(2, 2)


def test_another_amount_under_the_same_key_is_refused(demo: Running, ada: Api) -> None:
    assert ada.charge("amount-1").status_code == 201
    other = ada.charge("amount-1", cents=100)
    assert other.status_code == 422
    assert other.json()["code"] == "key-reused"
    assert demo.ledger.counts("amount-1") == Counts(1, 1)


def test_keys_and_charges_belong_to_their_caller(demo: Running, ada: Api, grace: Api) -> None:
    mine, hers = ada.charge("same-1"), grace.charge("same-1")
    assert mine.json()["id"] != hers.json()["id"]
    assert "x-idempotency-replayed" not in hers.headers
    taken = grace.post(f"/charges/{mine.json()['id']}/refunds", "same-2", {"cents": 1})
    assert taken.status_code == 404
    assert mine.json()["id"] not in grace.get("/ledger").text
    assert demo.ledger.counts("same-1", "refund").asked == 0


def test_a_request_without_a_token_is_refused(demo: Running, stranger: Api) -> None:
    for answer in (stranger.charge("who-1"), stranger.get("/ledger"), stranger.get("/charges")):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert demo.ledger.counts("who-1").asked == 0


@pytest.mark.parametrize(
    ("key", "wanted", "status"),
    [
        (None, {"order": "bad-1"}, 400),
        ("k" * 256, {"order": "bad-1"}, 400),
        ("bad-1", {"order": "bad-1", "cents": 0}, 422),
        ("bad-2", {"order": "bad-1", "cents": CENTS_MAX + 1}, 422),
        ("bad-3", {"order": "bad-1", "cents": "1"}, 422),
        ("bad-4", {"order": "bad 1"}, 422),
        ("bad-5", {"order": "bad-1", "card": "card_gold"}, 422),
        ("bad-6", {"order": "bad-1", "tip": 1}, 422),
        ("bad-7", {"order": "bad-1", "card": "x" * BODY_MAX_BYTES}, 413),
    ],
)
def test_an_invalid_charge_is_refused_before_the_provider_is_called(
    demo: Running, ada: Api, key: str | None, wanted: dict[str, object], status: int
) -> None:
    answer = ada.charge(key, **wanted)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert demo.ledger.counts("bad-1").asked == 0


def test_a_declined_card_stays_declined(demo: Running, ada: Api) -> None:
    answers = [ada.charge("poor-1", card=Card.DECLINED) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [402, 402]
    assert demo.ledger.counts("poor-1") == Counts(asked=1, acted=0, declined=1)
    assert "poor-1" not in ada.get("/ledger").text


def test_a_provider_failure_leaves_the_key_free(demo: Running, ada: Api) -> None:
    answers = [ada.charge("flaky-1", card=Card.FLAKY) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [502, 502, 201]
    assert demo.ledger.counts("flaky-1") == Counts(asked=3, acted=1)


def test_other_pages_in_the_browser_are_refused(demo: Running, stranger: Api) -> None:
    """Refused are host names that point to the loopback, and buttons of other pages."""
    assert stranger.get("/", Host="evil.example").status_code == 400
    assert stranger.get("/demo/state", Host="evil.example").status_code == 400
    pressed = stranger.post("/demo/scenario_runner/declined", None, None)
    assert pressed.status_code == 403
    page = stranger.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_demo_listens_on_the_loopback_only(demo: Running) -> None:
    port = httpx.URL(demo.url).port
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    found = [line.split() for line in lines]
    mine = [line[1] for line in found if line[1].endswith(f":{port:04X}") and line[3] == "0A"]
    assert mine == [f"0100007F:{port:04X}"]


def test_a_read_is_logged_as_a_read_and_the_page_itself_not_at_all(ada: Api) -> None:
    """Nothing ran, so it must not be counted among what ran."""
    for path in ("/ledger", "/docs", "/"):
        assert ada.get(path).status_code == 200
    logged = ada.get("/demo/state").json()["requests"]
    assert next(one["got"] for one in logged if one["path"] == "/ledger") == "read"
    assert not {"/docs", "/", "/demo/state"} & {one["path"] for one in logged}
