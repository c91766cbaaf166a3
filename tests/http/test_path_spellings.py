"""No spelling of a path reaches a guarded handler without a key.

Real servers pass the target on, and real routers interpret it: slashes, dots, escapes, line ends
and whole URLs.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import pytest
import uvicorn
from tests.http.app_server import ROOT
from tests.http.apps import path_spellings
from tests.http.socket_client import Connection, ConnectionClosed
from tests.support.servers import Granian, require
from tests.support.servers.http_servers import Gunicorn
from tests.support.servers.processes import free_port, wait_until
from werkzeug.serving import make_server

from oncekey.http import rules as rules_module
from oncekey.http.rules import Rule, Rules

TARGETS = """
    /pay //pay /pay/ /pay// ///pay/// /./pay /pay/. /x/../pay /../pay /%2e/pay /pay/%2e%2e/pay
    /%70ay /pa%79 /%2570ay /%2Fpay /pay%2F /pay%2f/ /pay%0A /pay%0a%0A /pay%0D%0A /pay%20 /pay%00
    /pay%3Fx /pay;x=1 /pay?x=1 //pay?x /pay#x /pay\\ \\pay /PAY pay *
    http://x/pay http://x//pay HTTP://x:80/pay http://x/pay?y https://u@x/pay/ http:/pay http://pay
    http://x/pay;y x:/pay;y /http://x/pay //x/pay /x//pay
    /v1/pay /v1//pay //v1/pay /v1/../pay /v1%2Fpay
    /items/a/refund /items/a//refund /items//a/refund //items/a/refund /items/a/refund//
    /items/a%2Fb/refund /items/a/refund%0A /items/%0A/refund /items/./refund /items/../refund
    /items/a/./refund /items/a/b/../refund /items/%2E%2E/refund http://x/items/a//refund
    /refunds /refunds/ /refunds.json /refunds.json/ /refunds.api%0A //refunds.json
    /legacy /legacy%0A
"""


@pytest.mark.parametrize("framework", ["starlette", "fastapi", "litestar", "quart"])
@pytest.mark.parametrize("server", ["h11", "httptools", "hypercorn", "granian"])
def test_no_spelling_reaches_an_asgi_handler_without_a_key(
    ports: dict[str, int], server: str, framework: str
) -> None:
    check(ports[server], framework)


@pytest.mark.parametrize(
    ("server", "framework"),
    [("werkzeug", "flask"), ("gunicorn", "flask"), ("gunicorn", "django"), ("granian", "django")],
)
def test_no_spelling_reaches_a_wsgi_handler_without_a_key(
    ports: dict[str, int], server: str, framework: str
) -> None:
    check(ports[server], framework)


@pytest.mark.parametrize(
    "units",
    [("//a", "/.."), ("/./a", ""), ("//", "/x"), ("/..", ""), ("%2e/", "/.."), ("x//.", "/../y")],
)
def test_i15_a_path_of_many_dots_is_read_in_one_pass(units: tuple[str, str]) -> None:
    """Paths are read before anybody knows who calls. A stranger's 57 KB of `/..` took seconds."""
    once, twice = (readings_work("".join(unit * n for unit in units)) for n in (500, 1_000))
    assert once < twice < 2.2 * once


def test_dots_are_resolved_up_to_the_root_and_not_further() -> None:
    resolved = {
        "/a/b/../c": "/a/c", "/a/../../b": "/b", "/..": "/", "/../..": "/", "/a/..": "/",
        "/a/b/..": "/a/", "/./": "/", "/a/.": "/a/", "/.a/..b": "/.a/..b",
    }  # fmt: skip
    for path, found in resolved.items():
        assert Rules([Rule(path=found)]).find("POST", path), path
        assert Rules([Rule(path="/a/x")]).find("POST", path) is None


def readings_work(path: str) -> int:
    """How much work all readings of a path are: the lines that run, and the length of every list
    and text that a line has made, since this is what it copied."""
    work, made = 0, dict[int, Any]()

    def on_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal work
        if frame.f_code.co_filename != rules_module.__file__:
            return None
        work += 1
        for value in frame.f_locals.values():
            if isinstance(value, list | str) and id(value) not in made:
                made[id(value)] = value  # and kept, so that no other one gets its id
                work += len(value)
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        Rules([Rule(path="/orders")]).find("POST", path)
    finally:
        sys.settrace(before)
    return work


@pytest.mark.parametrize(
    "path",
    ["/{a}-{b}", "/{a}-{b}-{c}", "/{a}{b}", "/{a}-/{b}-{c}", "/x{a}/{b}--{c}-", "/{a}-{b}*"],
)
def test_parameters_of_one_segment_match_what_a_search_for_all_ways_does(path: str) -> None:
    pattern = re.sub(r"\{.\}", "[^/]+", path.removesuffix("*")) + (".*" if "*" in path else "/?")
    texts = ["/" + "".join(text) for n in range(9) for text in itertools.product("x-/", repeat=n)]
    found = [text for text in texts if Rule(path=path).matches_path(text)]
    assert found == [text for text in texts if re.fullmatch(pattern, text)]
    assert found


def test_i15_parameters_of_one_segment_are_looked_for_once() -> None:
    """Trying all ways to divide these paths would not end in a lifetime."""
    rules = Rules(
        [Rule(path="/{a}-{b}-{c}-{d}-{e}-{f}.json"), Rule(path="/{a}{b}{c}{d}{e}{f}/pay")]
    )
    assert rules.find("POST", "/" + "-" * 20_000 + "/x") is None
    assert rules.find("POST", "/" + "-" * 20_000 + "/pay") is rules.all[1]


def check(port: int, framework: str) -> None:
    assert path_spellings.RAN in send(port, framework, "/pay", ("Idempotency-Key", "k")), (
        "it can be reached"
    )
    reached = [
        target for target in TARGETS.split() if path_spellings.RAN in send(port, framework, target)
    ]
    assert reached == []


def send(port: int, framework: str, target: str, *headers: tuple[str, str]) -> str:
    """What the server answers; "" where it will not take such a target at all."""
    with Connection(port) as connection:
        try:
            return connection.request(
                "POST", target, [("X-App", framework), *headers]
            ).body.decode()
        except ConnectionClosed:
            return ""


# --- servers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """One server of each kind, for all frameworks; in this process where that can be."""
    require(lambda: Granian("x:y"))
    require(lambda: Gunicorn("x:y"))
    env = {"WITH_DJANGO": "1"}
    with ExitStack() as stack:
        granian = stack.enter_context(
            Granian("tests.http.apps.path_spellings:asgi", cwd=ROOT, env=env)
        )
        gunicorn = stack.enter_context(
            Gunicorn("tests.http.apps.path_spellings:wsgi", cwd=ROOT, env=env)
        )
        yield {
            "granian": granian.port,
            "gunicorn": gunicorn.port,
            "h11": stack.enter_context(by_uvicorn("h11")),
            "httptools": stack.enter_context(by_uvicorn("httptools")),
            "hypercorn": stack.enter_context(by_hypercorn()),
            "werkzeug": stack.enter_context(by_werkzeug()),
        }


@contextmanager
def in_thread(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(60)


@contextmanager
def by_uvicorn(parser: Any) -> Iterator[int]:
    port = free_port()
    config = uvicorn.Config(
        path_spellings.asgi,
        port=port,
        http=parser,
        log_config=None,
        access_log=False,
        log_level="error",
    )
    server = uvicorn.Server(config)
    with in_thread(server.run, lambda: setattr(server, "should_exit", True)):
        wait_until(lambda: server.started, "uvicorn serves")
        yield port


@contextmanager
def by_hypercorn() -> Iterator[int]:
    config = hypercorn.config.Config()
    port = free_port()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    loop, end = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        serving = hypercorn.asyncio.serve(path_spellings.asgi, config, shutdown_trigger=end.wait)
        loop.run_until_complete(serving)
        loop.close()

    with in_thread(run, lambda: loop.call_soon_threadsafe(end.set)):
        wait_until(lambda: _takes(port), "hypercorn serves")
        yield port


def _takes(port: int) -> bool:
    try:
        Connection(port).close()
    except ConnectionRefusedError:
        return False
    return True


@contextmanager
def by_werkzeug() -> Iterator[int]:
    server = make_server("127.0.0.1", 0, path_spellings.wsgi, threaded=True)
    with in_thread(server.serve_forever, server.shutdown):
        yield server.port
    server.server_close()
