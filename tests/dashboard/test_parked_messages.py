"""The button that returns parked messages: what it moves, who may press it, and what it refuses."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.reader import Reader
from tests.dashboard.served_dashboard import PATIENCE_SECONDS, TOKEN, served
from tests.support.servers.processes import wait_until

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError
from oncekey.dashboard import Dashboard, parked_messages
from oncekey.queues import AsyncConsumer, AsyncMemoryBroker, Consumer, MemoryBroker, Message
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.consumer_settings import BrokerFacts

OPTIONS: dict[str, Any] = {"name": "shipping", "key": "json:$.id"}


async def _ship(message: Message) -> None: ...


def consumer_of(kind: str, queue: MemoryBroker, engines: ExitStack) -> Any:
    if kind == "tasks":
        once = AsyncOnce("memory://")
        engines.callback(lambda: asyncio.run(once.close()))
        return AsyncConsumer(once, _ship, AsyncMemoryBroker(queue), **OPTIONS)
    return Consumer(engines.enter_context(Once("memory://")), print, queue, **OPTIONS)


@pytest.fixture
def engines() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@contextmanager
def reading(url: str, **options: Any) -> Iterator[Reader]:
    app = Dashboard(url, token=TOKEN, **options)
    with served(app) as address, Reader(address) as reader:
        assert reader.sign_in().status_code == 303
        yield reader


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Once(url) as once:
        once.run("op", "k", lambda attempt: None)
    return url


def form_token(page: str) -> dict[str, str]:
    found = re.search(r'name="form_token" value="([^"]*)"', page)
    assert found is not None
    return {"form_token": found[1]}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_the_button_returns_parked_messages_to_their_queue(
    kind: str, url: str, engines: ExitStack
) -> None:
    queue = MemoryBroker("orders")
    queue.parked = [Message(b'{"id": 1}', "orders"), Message(b'{"id": 2}', "orders")]
    with reading(url, consumers=[consumer_of(kind, queue, engines)]) as reader:
        page = reader.get("/").text
        assert "Return the parked messages of shipping" in page
        answer = reader.post("/consumers/0/return", form_token(page))
        assert answer.status_code == 303
        assert "are back in their queue" in reader.get(answer.headers["location"]).text
        assert (len(queue), queue.parked) == (2, [])
        again = reader.post("/consumers/0/return", form_token(page))
        assert "There are no parked messages" in reader.get(again.headers["location"]).text


def test_nothing_is_moved_without_the_right_the_form_or_the_consumer(
    url: str, engines: ExitStack
) -> None:
    queue = MemoryBroker("orders")
    queue.parked = [Message(b'{"id": 1}', "orders")]
    consumers = [consumer_of("threads", queue, engines)]
    with reading(url, consumers=consumers, read_only=True) as reader:
        page = reader.get("/").text
        assert "Parked messages" not in page
        assert reader.post("/consumers/0/return", form_token(page)).status_code == 403
    with reading(url, consumers=consumers) as reader:
        assert reader.post("/consumers/0/return", {"form_token": "made up"}).status_code == 403
        page = reader.get("/").text
        for number in ("1", "x", "-1", "9" * 40):
            answer = reader.post(f"/consumers/{number}/return", form_token(page))
            assert answer.status_code == 404
    with reading(url) as reader:
        assert "Parked messages" not in reader.get("/").text
    assert len(queue.parked) == 1


def test_a_consumer_that_runs_here_or_whose_broker_is_away_is_told(
    url: str, engines: ExitStack
) -> None:
    class Away(MemoryBroker):
        def facts(self) -> BrokerFacts:
            raise BrokerUnavailable("nobody answers")

    consumers = [consumer_of("threads", queue, engines) for queue in (MemoryBroker(), Away())]
    consumers[0]._is_running = True
    with reading(url, consumers=consumers) as reader:
        token = form_token(reader.get("/").text)
        running = reader.post("/consumers/0/return", token)
        assert (running.status_code, "runs in this process" in running.text) == (409, True)
        away = reader.post("/consumers/1/return", token)
        assert (away.status_code, "nobody answers" in away.text) == (503, True)


def test_a_second_click_while_the_first_works_is_refused(url: str, engines: ExitStack) -> None:
    """Both would use one connection, and the first to end would close it."""
    began, go_on = threading.Event(), threading.Event()

    class Slow(MemoryBroker):
        def redrive(self, *args: Any, **options: Any) -> int:
            began.set()
            assert go_on.wait(60)
            return super().redrive(*args, **options)

    queue = Slow("orders")
    queue.parked = [Message(b'{"id": 1}', "orders")]
    with reading(url, consumers=[consumer_of("threads", queue, engines)]) as reader:
        token = form_token(reader.get("/").text)
        with ThreadPoolExecutor(1) as clicks:
            first = clicks.submit(reader.post, "/consumers/0/return", token)
            assert began.wait(60)
            try:
                second = reader.post("/consumers/0/return", token)
            finally:
                go_on.set()
            assert (second.status_code, "already" in second.text) == (409, True)
            assert first.result().status_code == 303
    assert (len(queue), queue.parked) == (1, [])


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_broker_that_does_not_answer_is_told_and_not_waited_for(
    kind: str, url: str, engines: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for without end, also by the end of the server."""
    answers = threading.Event()

    class Silent(MemoryBroker):
        def redrive(self, *args: Any, **options: Any) -> int:
            assert answers.wait(PATIENCE_SECONDS)
            return super().redrive(*args, **options)

    class SilentAsync(AsyncMemoryBroker):
        async def redrive(self, *args: Any, **options: Any) -> int:
            if not answers.is_set():
                await asyncio.Event().wait()
            return await super().redrive(*args, **options)

    queue = Silent("orders")
    queue.parked = [Message(b'{"id": 1}', "orders")]
    consumer: Any = consumer_of("threads", queue, engines)
    if kind == "tasks":
        once = AsyncOnce("memory://")
        engines.callback(lambda: asyncio.run(once.close()))
        consumer = AsyncConsumer(once, _ship, SilentAsync(queue), **OPTIONS)
    monkeypatch.setattr(parked_messages, "SILENT_MAX_S", 0.1)
    with reading(url, consumers=[consumer]) as reader:
        token = form_token(reader.get("/").text)
        silent = reader.post("/consumers/0/return", token)
        assert (silent.status_code, "has not answered for 0.1 s" in silent.text) == (503, True)
        if kind == "threads":  # its connection is still in use
            assert reader.post("/consumers/0/return", token).status_code == 409
        monkeypatch.setattr(parked_messages, "SILENT_MAX_S", 60.0)
        answers.set()
        wait_until(lambda: consumer not in parked_messages._in_hand, "it is left")
        assert reader.post("/consumers/0/return", token).status_code == 303
    assert (len(queue), queue.parked) == (1, [])


def test_what_is_no_consumer_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="MemoryBroker"):
        Dashboard(url, token=TOKEN, consumers=[MemoryBroker()])  # type: ignore[list-item]
