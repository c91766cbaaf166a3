"""The handlers of the sync apps, the same in every framework.

Each effect is a line in a file, and a gated handler waits until the test opens its gate, see
app_server.py. The settings are in the environment, because a server imports the app.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.http.apps.movable_clock import MovableClock

from oncekey import Once, Policy
from oncekey.engine.attempts.attempt import Attempt
from oncekey.http.wsgi import request_guard
from oncekey.stores.sqlite import SQLiteStore

FOLDER = Path(os.environ["GUARDED_FOLDER"])
STORE = os.environ.get("GUARDED_STORE") or f"sqlite:///{FOLDER}/keys.db"
CLOCK = MovableClock(FOLDER)
POLICY = Policy(lease="1m")
CALLERS = {"Bearer alice": "alice", "Bearer bob": "bob"}
POLL = 0.002
HOLD_MAX = 4_000_000

vars(request_guard)["HOLD_MAX_BYTES"] = HOLD_MAX


class HandlerResponse(NamedTuple):
    """The response of a handler; a body in parts is streamed."""

    status: int
    headers: dict[str, str]
    body: bytes | Iterator[bytes]
    cookies: tuple[str, ...] = ()


def engine() -> Once:
    """An engine on the store that the test names, or on a file and a clock that the test moves."""
    if "GUARDED_STORE" in os.environ:
        return Once(STORE, policy=POLICY)
    return Once(SQLiteStore(FOLDER / "keys.db", clock=CLOCK.wall), policy=POLICY, clock=CLOCK)


def effect(name: str) -> int:
    """Add an effect; returns the number of effects so far."""
    with (FOLDER / "effects").open("a+") as ledger:
        ledger.write(name + "\n")
        ledger.flush()
        ledger.seek(0)
        return len(ledger.readlines())


def gate(name: str) -> None:
    """Reach a gate, and wait until the test opens it."""
    (FOLDER / f"{name}.here").touch()
    while not (FOLDER / f"{name}.go").exists():
        time.sleep(POLL)


def json_response(value: Any, status: int = 200, **headers: str) -> HandlerResponse:
    return HandlerResponse(
        status, {"Content-Type": "application/json", **headers}, json.dumps(value).encode()
    )


def charge(_: str, body: bytes, __: Attempt | None) -> HandlerResponse:
    number = effect("charge")
    response = json_response({"number": number, "received": json.loads(body)}, 201)
    response.headers.update({"Location": f"/charges/{number}", "ETag": f'"{number}"'})
    response.headers.update({"X-Cost": "3", "X-No": "1"})
    return response


def gated(_: str, __: bytes, ___: Attempt | None) -> HandlerResponse:
    effect("gated")
    gate("gated")
    return json_response({"done": True}, Location="/x")


def status(code: str, _: bytes, __: Attempt | None) -> HandlerResponse:
    effect(f"status {code}")
    return HandlerResponse(
        int(code), {"Content-Type": "text/plain"}, b"" if code == "204" else b"so be it"
    )


def raises(_: str, __: bytes, ___: Attempt | None) -> HandlerResponse:
    effect("raises")
    raise ValueError("s3cret")


def binary(_: str, __: bytes, ___: Attempt | None) -> HandlerResponse:
    effect("binary")
    return HandlerResponse(200, {"Content-Type": "application/octet-stream"}, bytes(range(256)) * 9)


def large(size: str, _: bytes, __: Attempt | None) -> HandlerResponse:
    effect("large")
    return HandlerResponse(200, {"Content-Type": "text/plain"}, b"x" * int(size))


def long(_: str, __: bytes, ___: Attempt | None) -> HandlerResponse:
    effect("long")

    def parts() -> Iterator[bytes]:
        try:
            for number in range(100):
                if number == 67:  # the response buffer is full
                    gate("long")
                yield b"x" * 60_000
        finally:
            effect("closed")

    return HandlerResponse(200, {"Content-Type": "text/plain"}, parts())


def stream(_: str, __: bytes, ___: Attempt | None) -> HandlerResponse:
    effect("stream")
    parts = (b"part %d\n" % number for number in range(50))
    return HandlerResponse(200, {"Content-Type": "text/plain"}, parts)


def cookies(_: str, __: bytes, ___: Attempt | None) -> HandlerResponse:
    effect("cookies")
    return json_response({"done": True})._replace(cookies=("a=1", "b=2"))


def read() -> HandlerResponse:
    """A stream that must pass untouched, part by part."""

    def parts() -> Iterator[bytes]:
        yield b"0\n"
        gate("read")
        yield b"1\n"

    return HandlerResponse(200, {"Content-Type": "text/plain"}, parts())


def upload(_: str, body: bytes, __: Attempt | None) -> HandlerResponse:
    effect("upload")
    return json_response({"bytes": len(body)})


def attempt(_: str, __: bytes, running: Attempt | None) -> HandlerResponse:
    assert running is not None
    return json_response({"fence": running.fence, "child": running.child_key("pay")})


Handler = Callable[[str, bytes, Attempt | None], HandlerResponse]
HANDLERS: dict[str, Handler] = {
    "charges": charge,
    "other": charge,
    "optional": charge,
    "short": charge,
    "gated": gated,
    "waiting": gated,
    "status/{}": status,
    "safe/{}": status,
    "raises": raises,
    "binary": binary,
    "large/{}": large,
    "long": long,
    "stream": stream,
    "cookies": cookies,
    "upload": upload,
    "attempt": attempt,
}
_CHOSEN = {"headers": ["X-Cost", "Set-Cookie"]}
OPTIONS: dict[str, dict[str, Any]] = {
    "optional": {"required": False},
    "waiting": {"wait": "2m"},
    "short": {"keep": "1h", "audit": "0s"},
    "safe/{}": {"retry_safe": True},
    "upload": {"max_request": 10_000},
    "large/{}": {"max_response": 3_000_000},
}


def options(name: str) -> dict[str, Any]:
    return {**_CHOSEN, **OPTIONS.get(name, {})}
