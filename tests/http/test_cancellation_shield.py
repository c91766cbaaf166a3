"""A guarded run in a thread of asgiref's is not cancelled with its request; what follows it is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, async_to_sync, sync_to_async

from oncekey.http.django import view_call
from oncekey.http.django.view_call import shielded


class WaitingCall:
    """A sync function in a thread, which waits in async code while its request is cancelled."""

    def __init__(self) -> None:
        self.ended = ""
        self.has_ended = threading.Event()

    async def _wait(self) -> None:
        self._begun.set()
        await self._go_on.wait()

    def wait(self) -> None:
        try:
            async_to_sync(self._wait)()
            self.ended = "returned"
        except asyncio.CancelledError:
            self.ended = "cancelled"
        self.has_ended.set()

    async def cancel_request(self, function: Callable[[], None]) -> None:
        """Run the function in the thread; cancel the request while it waits, then let it go on."""
        self._begun, self._go_on = asyncio.Event(), asyncio.Event()
        request = asyncio.ensure_future(sync_to_async(function)())
        await self._begun.wait()
        request.cancel()
        await asyncio.wait({request})
        self._go_on.set()
        await asyncio.to_thread(self.has_ended.wait)
        assert request.cancelled() is (self.ended == "returned"), "it left a call that goes on"


@pytest.mark.parametrize(("around", "ended"), [(nullcontext, "cancelled"), (shielded, "returned")])
def test_i14_async_code_of_a_guarded_run_is_not_cancelled(around: Any, ended: str) -> None:
    call = WaitingCall()

    def guarded() -> None:
        with around():
            call.wait()

    asyncio.run(call.cancel_request(guarded))
    assert call.ended == ended


def test_async_code_after_a_guarded_run_is_cancelled_with_the_request() -> None:
    call = WaitingCall()

    def guarded_and_more() -> None:
        with shielded():
            async_to_sync(asyncio.sleep)(0)
        call.wait()

    asyncio.run(call.cancel_request(guarded_and_more))
    assert call.ended == "cancelled"


def test_an_unknown_asgiref_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(view_call, "_is_reported", False)

    def guarded() -> None:
        with shielded():
            pass

    def guarded_by_another_asgiref() -> None:
        del SyncToAsync.threadlocal.task_context
        guarded()

    with caplog.at_level(logging.WARNING, "oncekey"):
        guarded()  # not under ASGI
        asyncio.run(sync_to_async(guarded)())
        assert not caplog.records
        for _ in range(2):
            asyncio.run(sync_to_async(guarded_by_another_asgiref)())
    assert [record.message.startswith("this version of asgiref") for record in caplog.records] == [
        True
    ]
