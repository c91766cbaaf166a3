"""Redis Streams without a server: settings, entries as messages and back, errors, warnings."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
)
from tests.queues.stream_queues import LEASE_S

from oncekey import Once
from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import DeadLetter, Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams import RedisStreamConsumer, StreamRefused
from oncekey.queues.redis_streams.client import read_command
from oncekey.queues.redis_streams.consumers import AsyncRedisStreamBroker, RedisStreamBroker
from oncekey.queues.redis_streams.message import again_fields, message_of, moved_fields
from oncekey.queues.redis_streams.program import StreamProgram, WaitForEntry, server_warnings
from oncekey.queues.redis_streams.settings import StreamSettings, translated

PARK = Disposition(Kind.PARK, 0.0, "nobody knows")
DEAD = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("Terminal: no", 7, 2))


def settings(**given: Any) -> StreamSettings:
    return StreamSettings(**{"stream": "orders", "group": "shipping", **given})


def program(**given: Any) -> StreamProgram:
    return StreamProgram(settings(**given), needs_identity=False)


def message(*words: bytes, body_field: str | None = "body", identity: str | None = None) -> Message:
    return message_of([b"5-1", 2, list(words)], "orders", body_field, identity)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"stream": ""}, "stream='' must be a name"),
        ({"group": None}, "group=None must be a name"),
        ({"start": "$"}, r"start='\$' must be 'first'"),
        ({"start": 0}, "start=0"),
        ({"acked": "forget"}, "acked='forget' must be one of keep, delete, trim"),
        ({"dead_letter_stream": "orders"}, "must be different keys"),
        ({"body_field": ""}, "body_field='' must be a name"),
        ({"retention": "soon"}, "retention"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        settings(**given)


def test_settings_have_keys_beside_the_stream() -> None:
    own = settings(start="new", retention="7d")
    assert (own.dead_key, own.parked_key) == ("orders:dead", "orders:parked")
    assert own.due_key == "orders:oncekey:shipping"
    assert (own.start_id, own.retention_s) == ("$", 7 * 86_400)
    assert (settings().start_id, settings().retention_s) == ("", math.inf)
    assert settings(start="12-3").start_id == "12-3"


# --- entries ------------------------------------------------------------------------------------


def test_an_entry_is_a_message_with_its_other_fields_as_headers() -> None:
    found = message(b"body", b"\xff\x00", b"Trace-Id", b"t-1", b"blob", b"\xff")
    assert (found.body, found.queue) == (b"\xff\x00", "orders")
    assert found.headers == {"trace-id": "t-1"}  # what is not text is in raw alone
    assert (found.delivery_id, found.receive_count) == ("5-1", 2)
    assert dict(found.raw.fields)[b"blob"] == b"\xff"
    assert message(b"order", b"1").body == b""
    assert message(b"data", b"1", body_field="data").text == "1"


def test_all_fields_are_the_body_as_json_without_our_own_marks() -> None:
    """So that a message that was moved back is the same request as before."""
    plain = message(b"order", b"1", b"item", b"book", body_field=None)
    assert json.loads(plain.body) == {"order": "1", "item": "book"}
    letter = moved_fields(plain, DEAD, None)
    assert message(*letter, b"oncekey-redrive", b"r", body_field=None).body == plain.body


def test_a_moved_message_keeps_its_fields_and_loses_the_marks_of_an_earlier_failure() -> None:
    words = (b"body", b"\xff", b"Trace", b"t", b"oncekey-fence", b"3", b"oncekey-redrive", b"old")
    letter = moved_fields(message(*words), DEAD, "abc")
    assert dict(zip(letter[::2], letter[1::2], strict=True)) == {
        b"body": b"\xff",
        b"Trace": b"t",
        b"oncekey-id": b"abc/5-1",
        b"oncekey-error": b"Terminal: no",
        b"oncekey-fence": b"7",
        b"oncekey-tries": b"2",
    }
    parked = moved_fields(message(*words), PARK, "abc")
    marks = dict(zip(parked[::2], parked[1::2], strict=True))
    assert marks[b"oncekey-parked"] == b"nobody knows"
    assert marks[b"oncekey-redrive"] == b"old"  # it may still open its key when it is moved back


def test_a_message_keeps_the_id_that_it_had_first() -> None:
    first = message(b"body", b"x", identity="abc")
    again = message(*again_fields(first, "abc"), identity="abc")
    assert again.delivery_id == "5-1"
    moved = message(*moved_fields(again, DEAD, "abc"), identity="abc")
    assert moved.delivery_id == "5-1"
    elsewhere = message(*moved_fields(again, DEAD, "abc"), identity="def")
    assert elsewhere.delivery_id == "abc/5-1"
    assert message(*moved_fields(elsewhere, DEAD, "def"), identity="abc").delivery_id == "5-1"


# --- errors and warnings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (ConnectionError("Connection refused"), BrokerUnavailable, "Connection refused"),
        (OSError("no route"), BrokerUnavailable, "no route"),
        (OutOfMemoryError("command not allowed"), BrokerUnavailable, "command not allowed"),
        (ResponseError("READONLY You can't write"), BrokerUnavailable, "READONLY"),
        (ResponseError("NOGROUP No such key"), StreamRefused, "deleted while it was consumed"),
        (ResponseError("WRONGTYPE Operation against"), StreamRefused, "holds something else"),
        (ResponseError("CROSSSLOT Keys"), StreamRefused, "braces"),
        (NoPermissionError("NOPERM this user"), StreamRefused, "lacks rights"),
        (AuthenticationError("WRONGPASS invalid"), StreamRefused, "refused the login"),
    ],
)
def test_errors_of_redis_say_whether_to_try_again(
    error: Exception, kind: type[Exception], what: str
) -> None:
    made = translated(error, "orders", "shipping")
    assert type(made) is kind
    assert what in str(made)


def test_a_server_that_can_lose_messages_is_told() -> None:
    good = {"redis_version": "7.2.4", "aof_enabled": 1, "maxmemory_policy": "noeviction"}
    assert server_warnings(good) == [] == server_warnings({})
    (aof,) = server_warnings({**good, "aof_enabled": 0})
    assert "append-only file" in aof
    (evicts,) = server_warnings({**good, "maxmemory_policy": "allkeys-lru"})
    assert "evicts keys" in evicts


def test_an_idle_receive_asks_once_and_takes_nothing_more() -> None:
    """The next due time limits how long it waits."""
    own = program()
    flow: Any = own.receive(10, 5.0, LEASE_S)
    assert next(flow).name == "tidy"
    assert flow.send([b"-", 0]).name == "take"
    assert flow.send([[], [], 200]).milliseconds == 200
    with pytest.raises(StopIteration) as stop:
        flow.send(None)
    assert stop.value.value == ()
    with pytest.raises(StopIteration):
        next(own.receive(0, 0.0, LEASE_S))


def test_a_consumer_that_was_made_before_a_fork_gets_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = program()
    name = own.consumer
    next(own.facts())
    assert own.consumer == name
    monkeypatch.setattr(os, "getpid", lambda: 1)
    next(own.facts())
    assert own.consumer != name


# --- servers ------------------------------------------------------------------------------------


def test_servers_that_cannot_be_used_are_refused() -> None:
    bad_url = "redis://:secret@host:no-port/0"
    with pytest.raises(ConfigurationError, match="not an address") as refused:
        RedisStreamBroker(bad_url, program())
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="decode_responses"):
        RedisStreamBroker(redis.Redis(decode_responses=True), program())
    with pytest.raises(ConfigurationError, match="AsyncRedisStreamConsumer"):
        RedisStreamBroker(redis.asyncio.Redis(), program())
    with pytest.raises(ConfigurationError, match="RedisStreamConsumer"):
        AsyncRedisStreamBroker(redis.Redis(), program())


def test_a_blocking_read_ends_before_the_callers_client_gives_up() -> None:
    call = WaitForEntry("orders", "shipping", "me", 500)
    assert 100 in read_command(call, redis.Redis(socket_timeout=0.2))
    assert 500 in read_command(call, redis.Redis(socket_timeout=None))


def test_unknown_options_of_a_consumer_are_refused() -> None:
    with Once("memory://") as once, pytest.raises(ConfigurationError, match="unknown option"):
        RedisStreamConsumer(
            once, print, "orders", server="redis://127.0.0.1", name="a", key="header:id", grup="x"
        )
