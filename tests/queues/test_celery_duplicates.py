"""Duplicates of Celery tasks that no flag marks, direct calls, and ends of a task's own making."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from celery import Celery
from celery.backends.cache import _DUMMY_CLIENT_CACHE
from tests.queues.celery_shop import Shop, hold

from oncekey import Once


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
