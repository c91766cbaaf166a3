"""What a guarded Celery task does with one delivery, by Celery's own tracer; no worker runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.backends.cache import _DUMMY_CLIENT_CACHE
from celery.exceptions import Ignore, Reject, Retry
from tests.queues.celery_shop import Shop, hold

from oncekey import AsyncOnce, ConfigurationError, InFlight, Once, Policy
from oncekey.queues import celery_delivery as guard
from oncekey.queues.celery import idempotent_task
from oncekey.stores.memory import MemoryStore
from oncekey.testing import Fault, FaultyStore

CHORD_SIZE = 2


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    app.conf.task_default_queue = uuid.uuid4().hex
    app.finalize()
    _DUMMY_CLIENT_CACHE.clear()  # the results of other tests
    yield app
    app.close()


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as once:
        yield once


@pytest.fixture
def shop(app: Celery, once: Once) -> Shop:
    return Shop(app, once)


def nothing() -> None: ...


def test_task_in_flight_elsewhere_is_put_off_and_leaves_its_result_alone(
    shop: Shop, once: Once
) -> None:
    finish = hold(once, shop, "a")
    state, _ = shop.deliver("a", again=True, group="g", chord={"task": "collect"}, group_index=3)
    assert (state, shop.result(), shop.runs) == ("IGNORED", "PENDING", [])
    (copy,) = shop.sent()
    assert copy.headers["id"] == "task-1"
    assert copy.headers["eta"] is not None
    assert (copy.headers["retries"], copy.headers["group"], copy.headers["group_index"]) == (
        0,
        "g",
        3,
    )
    finish()


def test_duplicates_of_one_delivery_send_one_copy(shop: Shop, once: Once) -> None:
    """Otherwise copies would multiply for as long as the task runs."""
    finish = hold(once, shop, "a")
    assert [shop.deliver("a", again=True)[0] for _ in range(3)] == ["IGNORED"] * 3
    (copy,) = shop.sent()
    number = copy.headers[guard._PUT_OFF]
    assert [shop.deliver("a", again=True, **{guard._PUT_OFF: number})[0] for _ in range(3)]
    assert len(shop.sent()) == 1
    finish()


def test_copy_waits_no_longer_than_half_the_visibility_timeout(
    once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    for timeout, longest in ((None, 300.0), (120, 60.0), (7_200, 300.0)):
        app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
        if timeout is not None:
            app.conf.broker_transport_options = {"visibility_timeout": timeout}
        app.finalize()
        made = guard.GuardedTask(once, Shop(app, once).task, None, print)  # type: ignore[arg-type]
        assert made._longest == longest
        app.close()


def test_store_that_is_down_removes_nothing(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STORE_PAUSE_S", 0.0)
    is_down = [True]
    store = FaultyStore(MemoryStore(), lambda *_: Fault.REFUSE if is_down[0] else None)
    with Once(store) as once:
        shop = Shop(app, once)
        assert shop.deliver("a")[0] == "IGNORED"
        (copy,) = shop.sent()
        assert copy.headers["id"] == "task-1"
        assert copy.headers["eta"] is None
        is_down.clear()
        is_down.append(False)
        assert shop.deliver("a") == ("SUCCESS", {"shipped": "a"})


def test_message_is_requeued_if_its_copy_cannot_be_sent(
    shop: Shop, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise OSError("the broker is gone")

    finish = hold(once, shop, "a")
    monkeypatch.setattr(shop.task, "signature_from_request", broken)
    state, error = shop.deliver("a", again=True)
    assert state == "REJECTED"
    assert isinstance(error, Reject)
    assert error.requeue
    finish()


def test_replay_for_another_task_id_is_that_tasks_result(shop: Shop) -> None:
    assert shop.deliver("a", "task-1") == ("SUCCESS", {"shipped": "a"})
    assert shop.deliver("a", "task-2") == ("SUCCESS", {"shipped": "a"})
    assert (shop.runs, shop.result("task-2")) == (["a"], "SUCCESS")


def test_redelivery_after_the_result_is_ignored(shop: Shop) -> None:
    shop.deliver("a")
    assert shop.deliver("a", again=True)[0] == "IGNORED"
    assert (shop.runs, shop.sent()) == (["a"], [])


def test_redelivery_before_the_result_waits_once_and_then_gives_it(shop: Shop) -> None:
    """The first worker has stored the outcome and is about to store the result, or has died."""
    shop.deliver("a", "task-0")
    assert shop.deliver("a", again=True)[0] == "IGNORED"
    (copy,) = shop.sent()
    marks = {name: copy.headers[name] for name in (guard._PUT_OFF, guard._AWAITED)}
    assert shop.deliver("a", **marks) == ("SUCCESS", {"shipped": "a"})
    assert (shop.runs, shop.result()) == (["a"], "SUCCESS")


def test_chord_part_is_counted_once_where_the_backend_only_counts(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(
        shop.task.backend, "on_chord_part_return", lambda request, *_: counted.append(request.id)
    )
    chord = {"task": "collect", "args": [], "kwargs": {}, "chord_size": CHORD_SIZE}
    shop.deliver("a", group="g", chord=chord)
    shop.deliver("a", again=True, group="g", chord=chord)
    assert counted == ["task-1"]


def test_stored_failure_of_a_redelivered_task_is_not_told_twice(shop: Shop) -> None:
    def fail(name: str) -> None:
        raise ValueError("no such address")

    shop.body = fail
    assert shop.deliver("a")[0] == "FAILURE"
    assert shop.deliver("a", again=True)[0] == "IGNORED"
    assert shop.deliver("a", "task-2")[0] == "FAILURE"
    assert shop.runs == ["a"]


@pytest.mark.parametrize(
    "mark",
    [
        {"oncekey-redrive": "monday"},
        {"x-death": [{"reason": "rejected", "queue": "orders", "count": 1, "time": "12:00"}]},
    ],
)
def test_task_moved_back_from_a_dead_letter_queue_runs_again_once(
    shop: Shop, mark: dict[str, Any]
) -> None:
    def fail(name: str) -> None:
        raise ValueError("no such address")

    shop.body = fail
    shop.deliver("a")
    for _ in range(3):
        shop.deliver("a", **mark)
    assert shop.runs == ["a"] * 2
    expired = {"reason": "expired", "queue": "delay", "count": 1, "time": "12:00"}
    other: dict[str, Any] = {"x-death": [expired]}
    shop.deliver("a", **other)
    assert shop.runs == ["a"] * 2


@pytest.mark.parametrize("signal", [Retry("later"), Reject("later", requeue=True)])
def test_task_that_asks_for_another_run_frees_its_key(shop: Shop, signal: Exception) -> None:
    def ask(name: str) -> None:
        raise signal

    shop.body = ask
    assert shop.deliver("a")[0] in ("RETRY", "REJECTED")
    shop.body = lambda name: name
    assert shop.deliver("a", retries=1) == ("SUCCESS", "a")
    assert shop.runs == ["a", "a"]


def test_task_that_ended_by_ignore_is_ignored_again(shop: Shop) -> None:
    def ignore(name: str) -> None:
        raise Ignore("its state is set by hand")

    shop.body = ignore
    assert shop.deliver("a")[0] == "IGNORED"
    assert shop.deliver("a", again=True)[0] == "IGNORED"
    assert shop.runs == ["a"]


def test_key_delivery_takes_the_task_id(app: Celery, once: Once) -> None:
    runs = []

    @idempotent_task(once, key="delivery")
    @app.task(shared=False)
    def ship(name: str) -> None:
        runs.append(name)

    trace = build_tracer(ship.name, ship, app=app)
    for id in ("one", "one", "two"):
        trace(id, ("a",), {}, {"id": id})
    assert runs == ["a", "a"]


def test_direct_call_and_eager_call_get_value_and_error_themselves(shop: Shop, once: Once) -> None:
    assert shop.task("a") == shop.task("a") == {"shipped": "a"}
    assert shop.task.apply(("a",)).get() == {"shipped": "a"}
    assert shop.runs == ["a"]
    finish = hold(once, shop, "b")
    with pytest.raises(InFlight):
        shop.task("b")
    finish()
    assert shop.sent() == []


@pytest.mark.parametrize("option", ["acks_late", "reject_on_worker_lost"])
def test_task_that_is_acknowledged_early_is_refused_and_never_runs(
    app: Celery, once: Once, option: str
) -> None:
    task = app.task(shared=False, **{option: False})(nothing)
    with pytest.raises(ConfigurationError, match=f"Set {option}=True"):
        idempotent_task(once, key=lambda: "k")(task)
    with pytest.raises(ConfigurationError, match=f"Set {option}=True"):
        task()


def test_lazy_task_is_refused_when_its_app_is_finalized(once: Once) -> None:
    app = Celery("lazy", broker="memory://", set_as_current=False)

    @idempotent_task(once, key=lambda: "k")
    @app.task(shared=False)
    def early() -> None: ...

    with pytest.raises(ConfigurationError, match="acks_late"):
        app.finalize()
    app.close()


def test_wrong_set_ups_are_refused(app: Celery, once: Once) -> None:
    with pytest.raises(ConfigurationError, match="no Celery task; put it above"):
        idempotent_task(once, key=lambda: "k")(lambda: None)
    with pytest.raises(ConfigurationError, match="key="):
        idempotent_task(once, key="name")(app.task(name="x", shared=False)(nothing))
    with pytest.raises(ConfigurationError, match="unknown option"):
        idempotent_task(once, key=lambda: "k", leese="1s")(
            app.task(name="y", shared=False)(nothing)
        )
    with pytest.raises(ConfigurationError, match="needs a Once"):
        idempotent_task(AsyncOnce, key=lambda: "k")  # type: ignore[arg-type]


def test_keep_shorter_than_the_visibility_timeout_is_refused() -> None:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    app.finalize()
    with (
        Once("memory://", policy=Policy(keep="30m")) as once,
        pytest.raises(ConfigurationError, match="visibility timeout of 3600 s"),
    ):
        Shop(app, once)
    app.close()
