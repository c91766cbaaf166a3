"""Duplicates of Celery tasks that no flag marks, direct calls, and ends of a task's own making."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from celery import Celery, _state, shared_task
from celery.app.trace import build_tracer
from celery.backends.cache import _DUMMY_CLIENT_CACHE
from celery.exceptions import Reject
from tests.queues.celery_shop import Shop, hold

from oncekey import ConfigurationError, Once
from oncekey.core.identity import OPERATION_MAX_CHARS
from oncekey.queues.celery import idempotent_task


def new_app() -> Celery:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    app.conf.task_default_queue = uuid.uuid4().hex
    return app


@pytest.fixture
def app() -> Iterator[Celery]:
    app = new_app()
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


# --- direct calls ---------------------------------------------------------------------------------


def ships_a_part(shop: Shop) -> None:
    """The task calls itself for "part" if it runs for "whole"."""
    shop.body = lambda name: {"of": shop.task("part")} if name == "whole" else {"shipped": name}


def test_redelivered_task_that_calls_itself_gets_the_stored_value(shop: Shop) -> None:
    ships_a_part(shop)
    shop.deliver("part", id="other")
    assert shop.deliver("whole", again=True) == ("SUCCESS", {"of": {"shipped": "part"}})
    assert (shop.runs, shop.sent()) == (["part", "whole"], [])


def test_task_that_calls_itself_while_that_runs_elsewhere_comes_again_with_its_own_arguments(
    app: Celery, once: Once
) -> None:
    shop = Shop(app, once, retry_safe=True)
    ships_a_part(shop)
    finish = hold(once, shop, "part")
    assert shop.deliver("whole")[0] == "IGNORED"
    (copy,) = shop.sent()
    assert copy.payload[0] == ["whole"]
    finish()
    assert shop.deliver("whole", oncekey_put_off=1)[0] == "SUCCESS"


# --- shared tasks ---------------------------------------------------------------------------------


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Celery]]:
    """Three apps: one is finalized, one the current one, one is finalized later."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    monkeypatch.setattr(_state._tls, "current_app", None)
    apps = [new_app(), new_app(), new_app()]
    apps[0].finalize()
    apps[1].set_current()
    yield apps
    for app in apps:
        app.close()


def test_shared_task_is_guarded_in_every_app(apps: list[Celery], once: Once) -> None:
    runs: list[str] = []
    name = f"shared-{uuid.uuid4().hex}"

    @idempotent_task(once, key=lambda name: name)
    @shared_task(name=name)
    def ship(name: str) -> None:
        runs.append(name)

    apps[2].finalize()
    for number, app in enumerate(apps):
        trace = build_tracer(name, app.tasks[name], app=app)
        trace(f"task-{number}", ("a",), {}, {"id": f"task-{number}"})
    assert runs == ["a"]


@pytest.mark.parametrize("early", [0, 2])
def test_app_that_acknowledges_early_does_not_run_a_shared_task(
    apps: list[Celery], once: Once, early: int
) -> None:
    apps[early].conf.task_acks_late = False
    name = f"shared-{uuid.uuid4().hex}"

    @idempotent_task(once, key=lambda name: name)
    @shared_task(name=name)
    def ship(name: str) -> None: ...

    with pytest.raises(ConfigurationError, match="acks_late"):
        apps[early].tasks[name].run("a")
    assert apps[1].tasks[name].run("a") is None


# --- duplicates that no flag marks ----------------------------------------------------------------


def test_task_that_was_sent_twice_under_one_id_is_counted_once(shop: Shop) -> None:
    assert shop.deliver("a")[0] == "SUCCESS"
    assert shop.deliver("a")[0] == "IGNORED"
    assert shop.runs == ["a"]


@pytest.mark.parametrize("id", ["t" * 300, "two\nlines"])
def test_task_id_that_is_no_key_is_put_off_like_any_other(shop: Shop, once: Once, id: str) -> None:
    finish = hold(once, shop, "a")
    assert [shop.deliver("a", id=id, again=True)[0] for _ in range(2)] == ["IGNORED", "IGNORED"]
    assert len(shop.sent()) == 1
    finish()


def test_task_with_the_longest_name_is_put_off_like_any_other(app: Celery, once: Once) -> None:
    shop = Shop(app, once, operation="s" * OPERATION_MAX_CHARS)
    finish = hold(once, shop, "a")
    assert shop.deliver("a", again=True)[0] == "IGNORED"
    assert len(shop.sent()) == 1
    finish()


def test_task_whose_name_is_too_long_is_refused(app: Celery, once: Once) -> None:
    with pytest.raises(ConfigurationError, match="give operation= a shorter one"):
        Shop(app, once, operation="s" * (OPERATION_MAX_CHARS + 1))


def test_redelivered_task_of_an_app_without_results_is_done(once: Once) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    shop = Shop(app, once)
    assert [shop.deliver("a", again=again)[0] for again in (False, True)] == ["SUCCESS"] * 2
    assert (shop.runs, shop.sent()) == (["a"], [])
    app.close()


def test_result_backend_that_does_not_answer_fails_no_task(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.deliver("a")

    def away(id: str) -> str:
        raise ConnectionError("the result backend is away")

    with monkeypatch.context() as patch:
        patch.setattr(shop.task.backend, "get_state", away)
        assert shop.deliver("a", again=True)[0] == "IGNORED"
    (copy,) = shop.sent()
    assert copy.headers["id"] == "task-1"
    assert shop.result() == "SUCCESS"


# --- failures -------------------------------------------------------------------------------------


def test_task_that_rejected_its_message_rejects_every_other_copy(shop: Shop) -> None:
    def reject(name: str) -> None:
        raise Reject("no such address", requeue=False)

    shop.body = reject
    for id in ("task-1", "task-1", "task-2"):
        state, error = shop.deliver("a", id=id, again=id == "task-1")
        assert (state, error.requeue, shop.result(id)) == ("REJECTED", False, "PENDING")
    assert shop.runs == ["a"]


def test_failed_task_that_comes_again_is_still_a_dead_letter(app: Celery, once: Once) -> None:
    """Its worker may have died after it stored the result and before it rejected the message."""
    app.conf.task_acks_on_failure_or_timeout = False
    shop = Shop(app, once)

    def fail(name: str) -> None:
        raise ValueError("no such address")

    shop.body = fail
    assert shop.deliver("a")[0] == "FAILURE"
    state, error = shop.deliver("a", again=True)
    assert (state, error.requeue, shop.runs) == ("REJECTED", False, ["a"])


def test_result_that_cannot_be_stored_is_not_told_twice(shop: Shop) -> None:
    shop.body = lambda name: object()
    assert shop.deliver("a")[0] == "FAILURE"
    assert shop.deliver("a", again=True)[0] == "IGNORED"
