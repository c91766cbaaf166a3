"""Structured lines, as structlog and as a JSON log have them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import LogCapture
from tests.support.log_records import Written, written_log

from oncekey import Mismatch, Once, StoreUnavailable
from oncekey.core.guarantees import Guarantee, Level
from oncekey.metrics.structured_logs import LOGGER, StructuredLogs
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FaultyStore

SECRET_KEY = "sk_live_4242424242424242"
SECRET_BODY = "card 4000 0566 5566 5556"


@pytest.fixture
def log() -> Iterator[Written]:
    with written_log(LOGGER, logging.DEBUG) as written:
        yield written


def test_events_are_json_lines_without_key_or_body(log: Written) -> None:
    with Once("memory://") as once:
        StructuredLogs(once)
        once.run("charge", SECRET_KEY, lambda attempt: SECRET_BODY, scope="acct_1", request="a")
        with pytest.raises(Mismatch):
            once.run("charge", SECRET_KEY, lambda attempt: 1, scope="acct_1", request=SECRET_BODY)
    lines = [json.loads(line) for line in log.lines]
    levels = [record.levelno for record in log.records]
    assert list(zip([line["event"] for line in lines], levels, strict=True)) == [
        ("oncekey.miss", logging.DEBUG),
        ("oncekey.finished", logging.DEBUG),
        ("oncekey.mismatch", logging.WARNING),
    ]
    assert lines[0]["operation"] == "charge"
    assert lines[0]["scope"] == "acct_1"
    assert lines[0]["store"] == "memory"
    assert len(lines[0]["tag"]) == 12
    assert lines[1]["body"] >= 0
    assert SECRET_KEY not in log.text
    assert SECRET_BODY not in log.text


def test_changed_guarantee_says_why_and_other_lines_have_no_reason(log: Written) -> None:
    store = MemoryStore()
    with Once(store) as once:
        StructuredLogs(once)
        once.run("charge", "a", lambda attempt: 1)
        store.guarantee = Guarantee(Level.BEST_EFFORT, "a replica is attached, 'db-2'")
        once.run("charge", "b", lambda attempt: 1)
    reasons = {line["event"]: line.get("reason") for line in map(json.loads, log.lines)}
    assert reasons == {
        "oncekey.miss": None,
        "oncekey.finished": None,
        "oncekey.guarantee": "a replica is attached, 'db-2'",
    }


def test_structlog_gets_fields(log: Written) -> None:
    capture = LogCapture()
    logger = structlog.wrap_logger(None, processors=[capture])
    with Once("memory://") as once:
        StructuredLogs(once, logger, usual="info", store="main")
        once.run("charge", SECRET_KEY, lambda attempt: SECRET_BODY)
    assert [(entry["event"], entry["log_level"]) for entry in capture.entries] == [
        ("oncekey.miss", "info"),
        ("oncekey.finished", "info"),
    ]
    assert capture.entries[0]["store"] == "main"
    assert SECRET_KEY not in str(capture.entries)
    assert SECRET_BODY not in str(capture.entries)


def test_a_store_that_goes_and_comes_back_is_two_lines(log: Written) -> None:
    faulty = FaultyStore(MemoryStore())
    with Once(faulty) as once:
        StructuredLogs(once, usual=None)
        faulty.down = True
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                once.run("charge", "order-1", lambda attempt: 1)
        faulty.down = False
        once.run("charge", "order-1", lambda attempt: 1)
    names = [json.loads(line)["event"] for line in log.lines]
    assert names == ["oncekey.store_down", "oncekey.store_back"]


def test_an_unknown_level_is_refused() -> None:
    with Once("memory://") as once, pytest.raises(ValueError, match="usual"):
        StructuredLogs(once, usual="loud")
