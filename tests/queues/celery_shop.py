"""A guarded Celery task for tests, delivered to by Celery's own tracer; no worker runs."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer

from oncekey import Once
from oncekey.queues.celery import idempotent_task


class Shop:
    """A guarded task, and how often it ran. `body` is what it does."""

    def __init__(self, app: Celery, once: Once, **options: Any) -> None:
        self.app = app
        self.runs: list[str] = []
        self.body: Callable[[str], Any] = lambda name: {"shipped": name}

        def ship(name: str) -> Any:
            self.runs.append(name)
            return self.body(name)

        self.task = idempotent_task(once, key=lambda name: name, **options)(
            app.task(name=f"ship-{uuid.uuid4().hex}", shared=False)(ship)
        )
        self.operation: str = options.get("operation", self.task.name)
        self._trace = build_tracer(self.task.name, self.task, app=app)

    def deliver(self, name: str, id: str = "task-1", again: bool = False, **request: Any) -> Any:
        """Deliver a message; the state and the value or error that Celery ends with."""
        info = {"redelivered": again, "exchange": "", "routing_key": self.queue_name}
        headers = {"id": id, "delivery_info": info, **request}
        value, info_, *_ = self._trace(id, (name,), {}, headers)
        return ("SUCCESS", value) if info_ is None else (info_.state, info_.retval)

    @property
    def queue_name(self) -> str:
        name: str = self.app.conf.task_default_queue
        return name

    def sent(self) -> list[Any]:
        """The messages that were sent since the last look."""
        found: list[Any] = []
        with self.app.connection() as connection, connection.SimpleQueue(self.queue_name) as simple:
            while True:
                try:
                    message = simple.get_nowait()
                except queue.Empty:
                    return found
                message.ack()
                found.append(message)

    def result(self, id: str = "task-1") -> str:
        state: str = self.task.backend.get_state(id)
        return state


def hold(once: Once, shop: Shop, name: str) -> Callable[[], None]:
    """Run the task's key elsewhere; what is returned lets it finish."""
    began, end = threading.Event(), threading.Event()

    def body(attempt: object) -> dict[str, str]:
        began.set()
        assert end.wait(90)
        return {"shipped": name}

    request = {"args": [name], "kwargs": {}}
    run = lambda: once.run(shop.operation, name, body, request=request)  # noqa: E731
    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(90)

    def finish() -> None:
        end.set()
        thread.join()

    return finish
