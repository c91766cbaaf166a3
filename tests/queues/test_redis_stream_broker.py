"""Redis Streams: who is given an entry and when, what becomes of it, and what is never lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.queues.stream_queues import GROUP, LEASE_S, ClockedServer, Stream, bodies, take
from tests.support.servers.redis_server import redis_program, valkey_program
from tests.support.servers.requirements import require

from oncekey.core.errors import ConfigurationError
from oncekey.queues.disposition import REMOVE, STOPPED, DeadLetter, Disposition, Kind
from oncekey.queues.redis_streams import program as stream_program
from oncekey.queues.redis_streams.program import POSTPONED, WaitForEntry

PROGRAMS = {"valkey": valkey_program, "redis": redis_program}
RETRY = Disposition(Kind.RETRY, 300.0)
HIDE = Disposition(Kind.HIDE, 5.0)
DEAD = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("Terminal: no such item", 17, 3))
PARK = Disposition(Kind.PARK, 0.0, "OutcomeUnknown: its process died")


@pytest.fixture(scope="module", params=PROGRAMS)
def clocked(request: pytest.FixtureRequest) -> Iterator[ClockedServer]:
    made = require(lambda: ClockedServer(PROGRAMS[request.param]()))
    yield made
    made.close()


@pytest.fixture
def stream(clocked: ClockedServer) -> Iterator[Stream]:
    made = clocked.stream()
    yield made
    made.close()


# --- who is given what --------------------------------------------------------------------------


def test_an_entry_is_given_to_one_consumer_and_comes_again_when_its_lease_is_over(
    stream: Stream,
) -> None:
    one, other = stream.broker(), stream.broker()
    (id,) = stream.add("book")
    (message,) = take(one)
    assert (message.text, message.delivery_id, message.receive_count) == ("book", id, 1)
    assert take(other) == [] == take(one)
    stream.clocked.pass_time(LEASE_S + 2)
    (again,) = take(other)
    assert (again.text, again.delivery_id, again.receive_count) == ("book", id, 2)
    assert take(one) == []


def test_an_extended_entry_is_not_stolen(stream: Stream) -> None:
    """Neither by due times nor, for consumers that know none, by idle time and XAUTOCLAIM."""
    one, other = stream.broker(), stream.broker()
    stream.add("book")
    held = take(one)
    for _ in range(3):
        stream.clocked.pass_time(LEASE_S * 0.8)
        one.extend(held, LEASE_S)
        assert take(other) == []
    least = int(LEASE_S * 1000)
    claimed = stream.client.xautoclaim(stream.name, GROUP, "foreign", least)
    assert claimed[1] == []
    one.settle([(held[0], REMOVE)])
    assert stream.pending() == {}
    assert stream.due() == {}


def test_a_hidden_or_retried_entry_comes_after_its_delay_however_long_that_is(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_program, "TIDY_EVERY_S", 0.0)  # nobody takes it for abandoned
    one, other = stream.broker(), stream.broker()
    stream.add("hidden", "retried")
    hidden, retried = take(one)
    one.settle([(hidden, HIDE), (retried, RETRY)])
    assert set(stream.pending().values()) == {POSTPONED}
    stream.clocked.pass_time(6)
    assert bodies(take(other)) == ["hidden"]
    stream.clocked.pass_time(280)  # many leases
    assert "retried" not in bodies(take(other))
    stream.clocked.pass_time(20)
    assert "retried" in bodies(take(other))


def test_given_back_entries_come_at_once_and_a_consumer_that_leaves_keeps_none(
    stream: Stream,
) -> None:
    one, other = stream.broker(), stream.broker()
    stream.add("given back", "unsettled", "retried")
    first, _, third = take(one)
    one.settle([(first, STOPPED), (third, RETRY)])
    one.close()
    assert bodies(take(other)) == ["given back", "unsettled"]
    names = {item["name"] for item in stream.client.xinfo_consumers(stream.name, GROUP)}
    assert names == {POSTPONED, other.program.consumer}


def test_an_entry_that_a_blocking_read_has_left_is_taken_at_once(stream: Stream) -> None:
    """As when the reply of the read is lost: the server has given the entry already."""
    broker = stream.broker()
    (id,) = stream.add("book")
    stream.client.xreadgroup(GROUP, broker.program.consumer, {stream.name: ">"})
    broker.program._is_left_over = True
    (message,) = take(broker)
    assert (message.delivery_id, message.receive_count) == (id, 1)
    assert take(broker) == []


def test_a_blocking_read_gives_what_is_added_while_it_waits(stream: Stream) -> None:
    broker = stream.broker()
    (id,) = stream.add("book")
    receiving: Any = broker.program.receive(10, 5.0, LEASE_S)
    call = next(receiving)
    while not isinstance(call, WaitForEntry):
        nothing = [b"-", 0] if call.name == "tidy" else [[], [], -1]
        call = receiving.send(nothing)
    assert 0 < call.milliseconds <= 1000
    reply = broker._client.perform(call)
    with pytest.raises(StopIteration) as stop:
        receiving.send(broker._client.perform(receiving.send(reply)))
    assert [message.delivery_id for message in stop.value.value] == [id]


def test_abandoned_entries_without_a_due_time_are_found(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer died between a blocking read and its due time, or the due times were lost. They
    are found part by part (I10)."""
    monkeypatch.setattr(stream_program, "TIDY_EVERY_S", 0.0)
    monkeypatch.setattr(stream_program, "TIDY_MOST", 4)
    broker = stream.broker()
    stream.add(*map(str, range(10)))
    stream.client.xreadgroup(GROUP, "died", {stream.name: ">"}, count=10)
    assert take(broker) == []  # its consumer may be alive
    stream.clocked.pass_time(LEASE_S + 2)
    found = sorted(body for _ in range(4) for body in bodies(take(broker)))
    assert found == [str(number) for number in range(10)]


def test_consumers_that_are_gone_are_removed_and_only_without_entries(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To remove a consumer removes its pending entries, which would lose them."""
    monkeypatch.setattr(stream_program, "TIDY_EVERY_S", 0.0)
    broker = stream.broker()
    stream.add("book")
    for name in ("oncekey-holds", "oncekey-empty", "foreign"):
        stream.client.xreadgroup(GROUP, name, {stream.name: ">"})
    stream.clocked.pass_time(stream_program.GONE_AFTER_S + 10)
    broker.receive(1, 0.0, stream_program.GONE_AFTER_S * 2)  # nothing is abandoned yet
    names = {item["name"] for item in stream.client.xinfo_consumers(stream.name, GROUP)}
    assert {"oncekey-holds", "foreign"} <= names
    assert "oncekey-empty" not in names


def test_the_delivery_of_a_paused_consumer_settles_and_extends_nothing(stream: Stream) -> None:
    paused, other = stream.broker(), stream.broker()
    stream.add("book")
    (stale,) = take(paused)
    stream.clocked.pass_time(LEASE_S + 2)
    (message,) = take(other)
    due = stream.due()
    paused.extend([stale], LEASE_S * 10)
    paused.settle([(stale, DEAD), (stale, PARK), (stale, RETRY)])
    assert stream.due() == due
    assert stream.pending() == {message.delivery_id: other.program.consumer}
    assert stream.ids(":dead") == stream.ids(":parked") == []
    paused.settle([(stale, REMOVE)])  # the key is done, so nobody needs it
    assert stream.pending() == {}


def test_an_entry_that_somebody_else_acknowledged_is_forgotten(stream: Stream) -> None:
    """An operator's XACK, for example; nothing is left behind (I11)."""
    broker = stream.broker()
    (id,) = stream.add("book")
    take(broker)
    stream.client.xack(stream.name, GROUP, id)
    stream.clocked.pass_time(LEASE_S + 2)
    assert take(broker) == []
    assert stream.due() == {}


def test_a_delivery_is_settled_once(stream: Stream) -> None:
    broker = stream.broker()
    stream.add("book")
    (message,) = take(broker)
    broker.settle([(message, RETRY)])
    broker.settle([(message, DEAD)])
    assert stream.ids(":dead") == []
    assert set(stream.pending().values()) == {POSTPONED}


# --- what becomes of it -------------------------------------------------------------------------


def test_a_dead_letter_has_its_error_and_a_parked_message_its_reason(stream: Stream) -> None:
    broker = stream.broker()
    dead_id, parked_id = stream.add("dead", "parked", Trace="t-1")
    dead, parked = take(broker)
    broker.settle([(dead, DEAD), (parked, PARK)])
    assert stream.fields(":dead") == [
        {
            "body": "dead",
            "Trace": "t-1",
            "oncekey-id": f"/{dead_id}",
            "oncekey-error": "Terminal: no such item",
            "oncekey-fence": "17",
            "oncekey-tries": "3",
        }
    ]
    assert stream.fields(":parked") == [
        {
            "body": "parked",
            "Trace": "t-1",
            "oncekey-id": f"/{parked_id}",
            "oncekey-parked": PARK.reason,
        }
    ]
    assert stream.pending() == {}
    assert stream.due() == {}


def test_a_redrive_moves_the_oldest_dead_letters_back_with_their_marks(stream: Stream) -> None:
    broker = stream.broker()
    first_ids = stream.add(*map(str, range(5)), **{"oncekey-redrive": "old"})
    broker.settle([(message, DEAD) for message in take(broker)])
    assert broker.redrive(3, "r-1") == 3
    messages = take(broker)
    assert bodies(messages) == ["0", "1", "2"]
    assert [message.delivery_id for message in messages] == first_ids[:3]
    assert messages[0].headers["oncekey-redrive"] == "r-1"
    assert messages[0].headers["oncekey-fence"] == "17"
    assert broker.redrive(10, "r-2") == 2
    assert stream.ids(":dead") == []


def test_entries_that_are_done_stay_are_deleted_or_are_trimmed(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_program, "TIDY_EVERY_S", 0.0)
    keeping = stream.broker()
    ids = stream.add("1", "2", "3", "4")
    messages = take(keeping)
    keeping.settle([(messages[0], REMOVE)])
    assert stream.ids() == ids
    deleting = stream.broker(acked="delete")
    deleting.settle([(messages[1], REMOVE)])
    assert stream.ids() == [ids[0], *ids[2:]]
    trimming = stream.broker(acked="trim")
    stream.client.xgroup_create(stream.name, "mailing", "0")
    take(trimming)
    assert stream.ids() == [ids[0], *ids[2:]]  # another group has read nothing yet
    stream.client.xgroup_setid(stream.name, "mailing", ids[3])
    take(trimming)
    assert stream.ids() == ids[2:]  # what is pending stays
    with pytest.raises(ConfigurationError, match="1 other groups read the stream"):
        stream.broker(acked="delete")


# --- trimmed by others --------------------------------------------------------------------------


def test_a_pending_entry_that_was_trimmed_is_told_and_noted(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    broker, other = stream.broker(), stream.broker()
    (id,) = stream.add("book")
    take(broker)
    stream.client.xtrim(stream.name, maxlen=0, approximate=False)
    stream.clocked.pass_time(LEASE_S + 2)
    with caplog.at_level(logging.ERROR, "oncekey"):
        assert take(other) == []
    assert f"entry {id} was trimmed before it was done" in caplog.text
    (note,) = stream.fields(":parked")
    assert (note["oncekey-lost"], note["oncekey-consumer"]) == (id, broker.program.consumer)
    assert stream.pending() == {}


def test_an_entry_that_was_trimmed_in_hand_is_not_lost(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """A heartbeat does not make the server forget it, and if it is to come again it is added again,
    as the same message."""
    broker = stream.broker(identity=True)
    ids = stream.add("retried", "dead")
    retried, dead = take(broker)
    stream.client.xtrim(stream.name, maxlen=0, approximate=False)
    with caplog.at_level(logging.WARNING, "oncekey"):
        broker.extend([retried, dead], LEASE_S)
        broker.settle([(retried, RETRY), (dead, DEAD)])
    assert f"entry {ids[0]} was trimmed while its handler runs" in caplog.text
    assert f"entry {ids[0]} was trimmed while it was in hand, and was added again" in caplog.text
    (again,) = take(broker)
    assert (again.text, again.delivery_id) == ("retried", ids[0])
    assert [fields["body"] for fields in stream.fields(":dead")] == ["dead"]


def test_entries_that_were_trimmed_before_the_group_had_them_are_told(
    stream: Stream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_program, "TIDY_EVERY_S", 0.0)
    stream.add("trimmed before there was a group", "there before")
    stream.client.xtrim(stream.name, maxlen=1, approximate=False)
    broker = stream.broker()
    with caplog.at_level(logging.ERROR, "oncekey"):
        assert take(broker, 0) == []
        stream.add(*map(str, range(10)))
        assert take(broker, 1) != []
        assert caplog.text == ""
        stream.client.xtrim(stream.name, maxlen=2, approximate=False)
        assert bodies(take(broker)) == ["8", "9"]
        take(broker)
        assert caplog.text.count("8 entries were trimmed before the group") == 1
        stream.add(*map(str, range(8)))
        stream.client.xtrim(stream.name, maxlen=1, approximate=False)
        assert bodies(take(broker)) == ["7"]
    assert caplog.text.count("7 entries were trimmed before the group") == 1


def test_what_was_in_the_stream_before_a_group_can_be_missed_too(
    stream: Stream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_program, "TIDY_EVERY_S", 0.0)
    stream.add("there before", "also there")
    broker = stream.broker()
    stream.client.xtrim(stream.name, maxlen=1, approximate=False)
    with caplog.at_level(logging.ERROR, "oncekey"):
        assert bodies(take(broker)) == ["also there"]
    assert "1 entries were trimmed before the group" in caplog.text


# --- the group and the stream -------------------------------------------------------------------


def test_a_group_begins_only_where_somebody_said(stream: Stream) -> None:
    ids = stream.add("1", "2", "3")
    with pytest.raises(ConfigurationError, match="start='first'"):
        stream.broker(start=None)
    assert bodies(take(stream.broker(start="first", group="a"))) == ["1", "2", "3"]
    assert take(stream.broker(start="new", group="b")) == []
    assert bodies(take(stream.broker(start=ids[1], group="c"))) == ["3"]
    assert take(stream.broker(start=None, group="a")) == []  # it is there, so it goes on


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_stream_ends_its_consumers(stream: Stream, again: bool) -> None:
    """Also if there is one of the same name by then: it is another stream, and its entries must not
    be taken for those of the first (a marker in the stream went with it)."""
    broker = stream.broker(identity=True)
    identity = broker.program.identity
    assert identity == stream.broker(identity=True).program.identity
    stream.client.xadd(stream.name, {"body": "old"}, id="1-0")
    (old,) = take(broker)
    stream.client.delete(stream.name)
    if again:
        new = stream.broker(identity=True)
        stream.client.xadd(stream.name, {"body": "new"}, id="1-0")
        assert new.program.identity not in (None, identity)
        with pytest.raises(ConfigurationError, match="was deleted while it was consumed"):
            take(broker)
        (message,) = take(new)
        assert message.delivery_id == old.delivery_id == "1-0"  # told apart by the identity alone
    with pytest.raises(ConfigurationError, match="was deleted while it was consumed"):
        take(broker)


def test_a_dead_letter_of_a_deleted_stream_is_another_message(stream: Stream) -> None:
    broker = stream.broker(identity=True)
    identity = broker.program.identity
    stream.client.xadd(stream.name, {"body": "old"}, id="1-0")
    broker.settle([(take(broker)[0], DEAD)])
    stream.client.delete(stream.name)
    new = stream.broker(identity=True)
    new.redrive(1, "r-1")
    (message,) = take(new)
    assert message.delivery_id == f"{identity}/1-0"


def test_a_key_of_another_kind_is_refused(stream: Stream) -> None:
    stream.client.set(stream.name, "text")
    with pytest.raises(ConfigurationError, match="holds something else"):
        stream.broker()
