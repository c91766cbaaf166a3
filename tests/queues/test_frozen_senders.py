"""A stop ends a publisher of an outbox though the broker that it sends to answers nothing any more.

The clients' own limits are put far away: the stop must not need them. What was not confirmed stays
in the outbox, and is sent again under its id.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.config import Config
from tests.queues.outbox_case import OutboxCase
from tests.queues.rabbit_queues import QUORUM, channel_to
from tests.queues.running_consumer import wait_until
from tests.support.log_records import written_log
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import Proxy, processes
from tests.support.servers.sqs_server import sqs

from oncekey import ConfigurationError
from oncekey.queues.outbox import OutgoingMessage
from oncekey.queues.outbox.sender_calls import LONGEST_WAIT_S, ThreadCalls
from oncekey.queues.rabbitmq import AsyncRabbitSender, RabbitSender
from oncekey.queues.rabbitmq.aio_pika_session import AioPikaSession
from oncekey.queues.rabbitmq.settings import RabbitSettings
from oncekey.queues.sqs import AsyncSQSSender, SQSSender

ENDS_S = 60.0
FAR_S = 100_000.0
Frozen = tuple[Any, str, Callable[[], object], Callable[[], object]]


class _WatchedSender:
    """A sender that says when it was given messages."""

    batch_max = 10

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self.given: list[OutgoingMessage] = []

    def close(self) -> Any:
        return self._sender.close()

    def send(self, messages: Any) -> Any:
        self.given += messages
        return self._sender.send(messages)


class _WatchedAsyncSender(_WatchedSender):
    async def close(self) -> Any:
        return await self._sender.close()

    async def send(self, messages: Any) -> Any:
        self.given += messages
        return await self._sender.send(messages)


class _Unanswering:
    """A client whose call never returns after the first one, nor does its close."""

    batch_max = 10

    def __init__(self) -> None:
        self.is_frozen = False
        self._thawed = threading.Event()

    def freeze(self) -> None:
        self.is_frozen = True

    def send(self, messages: Any) -> list[None]:
        if self.is_frozen:
            self._thawed.wait()
        return [None] * len(messages)

    def close(self) -> None:
        if self.is_frozen:
            self._thawed.wait()

    def thaw(self) -> None:
        self._thawed.set()


class _AsyncUnanswering(_Unanswering):
    async def send(self, messages: Any) -> list[None]:  # type: ignore[override]
        if self.is_frozen:
            await asyncio.Event().wait()
        return [None] * len(messages)

    async def close(self) -> None:  # type: ignore[override]
        if self.is_frozen:
            await asyncio.Event().wait()


@contextmanager
def _client(is_async: bool) -> Iterator[Frozen]:
    sender = _AsyncUnanswering() if is_async else _Unanswering()
    yield sender, "orders", sender.freeze, sender.thaw
    sender.thaw()


@contextmanager
def _rabbitmq(is_async: bool) -> Iterator[Frozen]:
    server, queue = rabbitmq(), processes.fresh_name("frozen")
    with channel_to(server.url) as channel:
        channel.queue_declare(queue, durable=True, arguments=QUORUM)
    with Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        sender = AsyncRabbitSender(url) if is_async else RabbitSender(url)
        yield sender, queue, lambda: proxy.hold("requests", "replies"), proxy.heal


@contextmanager
def _sqs(is_async: bool) -> Iterator[Frozen]:
    server = sqs()
    queue = server.pair(fifo=False).source.rpartition("/")[2]
    with Proxy(server.port) as proxy:
        options = server.options() | {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        patient: Any = {"read_timeout": FAR_S, "retries": {"max_attempts": 1}}
        sender: Any
        if is_async:
            config = AioConfig(**patient)
            sender = AsyncSQSSender(get_session().create_client("sqs", config=config, **options))
        else:
            sender = SQSSender(server.client(**options, config=Config(**patient)))
        yield sender, queue, lambda: proxy.hold("requests", "replies"), proxy.heal


CASES: dict[str, Callable[[bool], AbstractContextManager[Frozen]]] = {
    "client": _client,
    "rabbitmq": _rabbitmq,
    "sqs": _sqs,
}


@pytest.fixture(params=["sqlite", "sqlite-async"], ids=["threads", "tasks"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutboxCase]:
    made = OutboxCase(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def patient_rabbitmq(monkeypatch: pytest.MonkeyPatch) -> None:
    for session in ("pika_session", "aio_pika_session"):
        module = f"oncekey.queues.rabbitmq.{session}"
        monkeypatch.setattr(f"{module}.PUBLISH_TIMEOUT_S", FAR_S)
        monkeypatch.setattr(f"{module}.CONNECT_TIMEOUT_S", FAR_S)


class Run:
    """`run` of a publisher in a thread, on a loop of its own if it is async."""

    def __init__(self, case: OutboxCase, publisher: Any) -> None:
        self._runner = case.runner
        self._publisher, self._is_async = publisher, case.is_async
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            if self._is_async:
                self._runner.run(self._publisher.run())
            else:
                self._publisher.run()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        if self._is_async:
            self._runner.get_loop().call_soon_threadsafe(self._publisher.stop)
        else:
            self._publisher.stop()

    def has_ended(self) -> bool:
        self._thread.join(ENDS_S)
        return not self._thread.is_alive()


@pytest.mark.parametrize("name", CASES)
def test_a_stop_ends_a_publisher_whose_broker_is_frozen(name: str, case: OutboxCase) -> None:
    with ExitStack() as stack:
        sender, queue, freeze, thaw = stack.enter_context(CASES[name](case.is_async))
        log = stack.enter_context(written_log("oncekey", 10))
        watched = (_WatchedAsyncSender if case.is_async else _WatchedSender)(sender)
        publisher = case.publisher(watched, stop_timeout="500ms").publisher
        case.add("first", queue=queue)
        assert case.do(publisher.publish_due()) == 1
        freeze()
        stack.callback(thaw)
        case.add("second", queue=queue)
        run = Run(case, publisher)
        wait_until(lambda: len(watched.given) == 2, "the second message is being sent")
        run.stop()
        assert run.has_ended(), "the publisher did not end"
        assert run.error is None
        assert case.bodies() == ["second"]
        assert (case.stats().taken, case.stats().parked) == (0, 0), "it is due again"
        assert any("outbox: the broker does not answer" in line for line in log.lines)
        assert any("outbox ends: it was stopped" in line for line in log.lines)


def test_a_close_of_aio_pika_ends_though_its_client_never_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("oncekey.queues.rabbitmq.aio_pika_session.CLOSE_TIMEOUT_S", 0.2)

    async def main() -> None:
        session = AioPikaSession(RabbitSettings(url=rabbitmq().url, queue="-"))
        await session.open()
        connection = session._connection
        with monkeypatch.context() as patched:
            patched.setattr(connection, "close", asyncio.Event().wait)
            await asyncio.wait_for(session.close(), ENDS_S)
        assert not session.is_open
        await connection.close()

    asyncio.run(main())


def test_an_interruption_waits_for_what_is_being_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while a thread sends: what it sends is settled before `run` raises."""
    case = OutboxCase("sqlite", tmp_path)
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    stopped = threading.Event()

    def publish(message: OutgoingMessage) -> None:
        signal.pthread_kill(main, signal.SIGINT)
        assert stopped.wait(ENDS_S)

    publisher = case.publisher(publish).publisher
    stop = publisher.stop

    def noted_stop() -> None:
        stop()
        stopped.set()

    monkeypatch.setattr(publisher, "stop", noted_stop)
    case.add("first")
    with pytest.raises(KeyboardInterrupt):
        publisher.run()
    assert case.bodies() == []
    case.close()


def test_a_signal_just_before_a_wait_is_handled_in_a_second() -> None:
    """It wakes nobody: the thread is not waiting yet. So it does not wait for ever."""
    waiting = threading.Event()
    waits: list[float | None] = []

    class Watched(SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            waits.append(timeout)
            waiting.set()
            super().get(block, timeout)

    calls = ThreadCalls("outbox", ENDS_S, lambda: None)
    calls._news = Watched()
    assert calls.run(waiting.wait, ENDS_S)
    calls.end()
    assert all(wait is not None and wait <= LONGEST_WAIT_S for wait in waits)


def test_stop_timeout_is_checked(case: OutboxCase) -> None:
    with pytest.raises(ConfigurationError, match="stop_timeout"):
        case.publisher(lambda message: None, stop_timeout="soon")
