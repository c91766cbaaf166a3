"""Keys on disk: what is left open is taken up again, and nothing else ever is."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.client.callers import AsyncHttpxCaller, RequestsCaller, calling
from tests.client.scripted import Answer, Drop, Hang, serving

from oncekey import InFlight, InvalidKey, Mismatch
from oncekey.client import Journal, RetriesExhausted, Retry

ONCE = Retry(attempts=1)


# --- left open and taken up -----------------------------------------------------------------------


def test_an_unanswered_request_leaves_its_key_to_the_next_such_request(
    name: str, journal: Journal
) -> None:
    with (
        serving(Drop(), Answer(201), Answer(201)) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        with pytest.raises(RetriesExhausted, match="the journal keeps the key") as caught:
            caller.post(server.url + "/pay?a=1")
        assert journal.open_entries() == 1
        got = caller.post(server.url + "/pay?a=1")
        assert journal.open_entries() == 0
        caller.post(server.url + "/pay?a=1")
    lost, taken_up, new = server.keys
    assert lost == taken_up == f'"{caught.value.key}"'
    assert got.delivery is not None
    assert got.delivery.key == caught.value.key
    assert new != lost


def test_the_key_is_on_disk_before_the_first_byte_is_sent(name: str, journal: Journal) -> None:
    counts: list[int] = []
    with (
        serving(Hang(), Answer()) as server,
        calling(name, journal=journal, on_progress=lambda p: counts.append(_entries(p))) as caller,
    ):

        def _entries(progress: Any) -> int:
            return journal.open_entries() if progress.kind == "sending" else -1

        caller.post(server.url, timeout=0.5)
    assert [count for count in counts if count >= 0] == [1, 1]
    assert journal.open_entries() == 0


@pytest.mark.parametrize("other", ["method", "path", "query", "body"])
def test_another_request_gets_another_key(name: str, journal: Journal, other: str) -> None:
    with (
        serving(Drop(), Answer()) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        asked: dict[str, Any] = {"method": "POST", "url": server.url + "/pay?a=1", "body": b"5"}
        with pytest.raises(RetriesExhausted):
            caller.send(**asked)
        changes: dict[str, dict[str, Any]] = {
            "method": {"method": "PATCH"},
            "path": {"url": server.url + "/Pay?a=1"},
            "query": {"url": server.url + "/pay?a=2"},
            "body": {"body": b"6"},
        }
        caller.send(**{**asked, **changes[other]})
    first, second = server.keys
    assert first != second
    assert journal.open_entries() == 1


def test_a_forms_boundary_does_not_hide_it(journal: Journal) -> None:
    with (
        serving(Drop(), Answer()) as server,
        calling("requests", journal=journal, retry=ONCE) as caller,
    ):
        assert isinstance(caller, RequestsCaller)
        with pytest.raises(RetriesExhausted):
            caller.session.post(server.url, files={"f": b"content"})
        caller.session.post(server.url, files={"f": b"content"})
    first, again = server.seen
    assert first.all("Content-Type") != again.all("Content-Type")
    assert first.key == again.key


@pytest.mark.parametrize("status", [200, 302, 400, 404, 422])
def test_a_definitive_answer_closes_the_entry(name: str, journal: Journal, status: int) -> None:
    with serving(Answer(status)) as server, calling(name, journal=journal) as caller:
        if isinstance(caller, RequestsCaller):
            caller.session.max_redirects = 0
        caller.post(server.url)
    assert journal.open_entries() == 0


@pytest.mark.parametrize("status", [500, 501, 307, 401, 409])
def test_any_other_answer_leaves_it_open(name: str, journal: Journal, status: int) -> None:
    with (
        serving(Answer(status), Answer()) as server,
        calling(name, journal=journal) as caller,
    ):
        assert caller.post(server.url).status == status
        assert journal.open_entries() == 1
        caller.post(server.url)
    first, again = server.keys
    assert first == again
    assert journal.open_entries() == 0


def test_a_server_that_does_not_know_either_leaves_it_open(name: str, journal: Journal) -> None:
    unknown = json.dumps({"type": "outcome-unknown", "safe_new_key": False}).encode()
    answer = Answer(409, unknown, {"Content-Type": "application/problem+json"})
    with serving(answer) as server, calling(name, journal=journal) as caller:
        got = caller.post(server.url)
    assert got.delivery is not None
    assert not got.delivery.conclusive
    assert journal.open_entries() == 1


def test_without_retries_a_request_in_flight_is_left_open(name: str, journal: Journal) -> None:
    busy = Answer(409, b"", {"Retry-After": "1"})
    with serving(busy) as server, calling(name, journal=journal, retry=None) as caller:
        assert caller.post(server.url).status == 409
    assert journal.open_entries() == 1


def test_a_refused_caller_leaves_open_what_may_have_happened(name: str, journal: Journal) -> None:
    with (
        serving(Drop(), Answer(403), Answer(403)) as server,
        calling(name, journal=journal) as caller,
    ):
        caller.post(server.url)
        assert journal.open_entries() == 1
        caller.post(server.url)  # the same entry: of no use to close it now
    assert len(set(server.keys)) == 1
    assert journal.open_entries() == 1


def test_a_key_that_was_taken_up_is_never_said_to_be_unused(name: str, journal: Journal) -> None:
    with serving(Drop()) as server:
        url = server.url
        with (
            calling(name, journal=journal, retry=ONCE) as caller,
            pytest.raises(RetriesExhausted),
        ):
            caller.post(url)
    with calling(name, journal=journal, retry=ONCE) as caller:
        with pytest.raises(RetriesExhausted) as caught:
            caller.post(url)  # nobody listens any more
        assert not caught.value.safe_new_key
        with pytest.raises(RetriesExhausted) as fresh:
            caller.post(url, body=b"another")
        assert fresh.value.safe_new_key


def test_what_the_library_sends_on_stays_on_record(name: str, journal: Journal) -> None:
    """A redirect goes elsewhere with the same key; losing its answer must leave the entry of the
    request that the caller knows, and an answer must close it."""
    away = Answer(307, b"", {"Location": "/there"})
    with (
        serving(away, Drop(), away, Answer()) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        if not isinstance(caller, RequestsCaller):
            caller.client.follow_redirects = True
        with pytest.raises(RetriesExhausted):
            caller.post(server.url)
        assert journal.open_entries() == 1
        assert caller.post(server.url).status == 200
    assert len(set(server.keys)) == 1
    assert journal.open_entries() == 0


def test_a_callers_own_key_needs_no_entry(name: str, journal: Journal) -> None:
    with (
        serving(Drop(), Answer(), Answer()) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        with pytest.raises(RetriesExhausted):
            caller.post(server.url, headers={"Idempotency-Key": "mine"})
        assert journal.open_entries() == 0
        caller.post(server.url)
        caller.post(server.url, headers={"Idempotency-Key": "mine"})
    assert server.keys[0] == server.keys[2] == "mine" != server.keys[1]


# --- what must not merge --------------------------------------------------------------------------


def test_identical_requests_at_the_same_time_stay_two(name: str, journal: Journal) -> None:
    first, second = Hang(Answer(201)), Hang(Answer(201))
    if name == "httpx-async":
        _two_at_once_on_a_loop(journal, first, second)
        return
    with (
        serving(first, second) as server,
        calling(name, journal=journal) as caller,
        ThreadPoolExecutor(2) as pool,
    ):
        asked = [pool.submit(caller.post, server.url) for _ in range(2)]
        assert first.here.wait(10)
        assert second.here.wait(10)
        assert journal.open_entries() == 2
        first.go.set()
        second.go.set()
        assert [one.result(10).status for one in asked] == [201, 201]
    assert len(set(server.keys)) == 2
    assert journal.open_entries() == 0


def _two_at_once_on_a_loop(journal: Journal, first: Hang, second: Hang) -> None:
    with serving(first, second) as server, calling("httpx-async", journal=journal) as caller:
        assert isinstance(caller, AsyncHttpxCaller)
        client = caller.client

        async def both() -> None:
            tasks = [asyncio.create_task(client.post(server.url)) for _ in range(2)]
            for hang in (first, second):
                assert await asyncio.to_thread(hang.here.wait, 10)
            assert journal.open_entries() == 2
            first.go.set()
            second.go.set()
            await asyncio.gather(*tasks)

        caller.runner.run(both())
    assert len(set(server.keys)) == 2
    assert journal.open_entries() == 0


def test_two_that_were_left_open_are_taken_up_by_two(journal: Journal) -> None:
    lost = [Hang(Drop()), Hang(Drop())]
    with (
        serving(*lost, Answer(), Answer(), Answer()) as server,
        calling("httpx", journal=journal, retry=ONCE) as caller,
        ThreadPoolExecutor(2) as pool,
    ):
        asked = [pool.submit(caller.post, server.url) for _ in range(2)]
        for hang in lost:
            assert hang.here.wait(10)
        for hang in lost:
            hang.go.set()
        for one in asked:
            with pytest.raises(RetriesExhausted):
                one.result(10)
        assert journal.open_entries() == 2
        for _ in range(3):
            caller.post(server.url)
    assert set(server.keys[:2]) == set(server.keys[2:4])
    assert len(set(server.keys)) == 3


def test_a_cancelled_request_leaves_its_entry_for_the_next(journal: Journal) -> None:
    hang = Hang()
    with serving(hang, Answer()) as server, calling("httpx-async", journal=journal) as caller:
        assert isinstance(caller, AsyncHttpxCaller)
        client = caller.client

        async def cancel() -> None:
            task = asyncio.create_task(client.post(server.url, content=b"{}"))
            assert await asyncio.to_thread(hang.here.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        caller.runner.run(cancel())
        assert journal.open_entries() == 1
        caller.post(server.url)
    assert len(set(server.keys)) == 1
    assert journal.open_entries() == 0


def test_an_entry_that_is_released_before_it_begins_is_not_written(journal: Journal) -> None:
    """The thread of a cancelled request may get to the disk after the cancellation."""
    late = journal.entry_for("k1", b"digest")
    late.release()
    late.begin()
    assert journal.open_entries() == 0
    next_one = journal.entry_for("k2", b"digest")
    next_one.begin()
    assert (next_one.key, next_one.held, late.held) == ("k2", True, False)


# --- intents --------------------------------------------------------------------------------------


def test_an_intent_is_found_by_its_name(name: str, journal: Journal) -> None:
    given = {"intent": "order-17"}
    with (
        serving(Drop(), Answer(), Answer()) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        with pytest.raises(RetriesExhausted):
            caller.post(server.url, given=given)
        caller.post(server.url)  # the same request, but not that intent
        caller.post(server.url, given=given)
    lost, other, again = server.keys
    assert lost == again != other
    assert journal.open_entries() == 0
    assert [seen.all("Oncekey-Intent") for seen in server.seen] == [[], [], []]


def test_an_intent_for_another_request_is_refused_before_anything_is_sent(
    name: str, journal: Journal
) -> None:
    given = {"intent": "order-17"}
    with (
        serving(Drop()) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        with pytest.raises(RetriesExhausted):
            caller.post(server.url, given=given, body=b"5")
        with pytest.raises(Mismatch, match="'order-17' was for another request"):
            caller.post(server.url, given=given, body=b"6")
    assert len(server.seen) == 1


def test_an_intent_under_way_is_not_sent_twice(journal: Journal) -> None:
    given = {"intent": "order-17"}
    hang = Hang()
    with serving(hang) as server, calling("httpx", journal=journal) as caller:
        other = threading.Thread(target=caller.post, args=(server.url,), kwargs={"given": given})
        other.start()
        assert hang.here.wait(10)
        with pytest.raises(InFlight, match="under way"):
            caller.post(server.url, given=given)
        hang.go.set()
        other.join(10)
    assert len(server.seen) == 1
    assert journal.open_entries() == 0


def test_an_intent_that_was_carried_out_is_sent_under_its_key_for_ever(
    name: str, journal: Journal
) -> None:
    """Whoever dies right after the answer came does not know of it, and asks again."""
    given = {"intent": "order-17"}
    with serving(*[Answer(201)] * 4) as server, calling(name, journal=journal) as caller:
        for _ in range(2):
            assert caller.post(server.url, given=given).status == 201
            assert journal.open_entries() == 0
        with pytest.raises(Mismatch, match="'order-17' was for another request"):
            caller.post(server.url, given=given, body=b"another")
        caller.post(server.url)
        caller.post(server.url, given={"intent": "order-18"})
    assert server.keys[0] == server.keys[1]
    assert len(set(server.keys)) == 3


def test_an_intent_that_was_refused_may_come_corrected(name: str, journal: Journal) -> None:
    given = {"intent": "order-17"}
    with (
        serving(Answer(422), Answer(201), Answer(404), Answer(201)) as server,
        calling(name, journal=journal) as caller,
    ):
        caller.post(server.url, given=given, body=b"wrong")
        for _ in range(3):  # once done it stays done, whatever the server says later
            caller.post(server.url, given=given, body=b"right")
    wrong, *right = server.keys
    assert len(set(right)) == 1
    assert wrong != right[0]


@pytest.mark.parametrize("intent", ["", "x" * 256, "tab\t", 17])
def test_an_intents_name_has_limits(journal: Journal, intent: Any) -> None:
    with (
        serving() as server,
        calling("httpx", journal=journal) as caller,
        pytest.raises(InvalidKey, match="intent"),
    ):
        caller.post(server.url, given={"intent": intent})
    assert server.seen == []
