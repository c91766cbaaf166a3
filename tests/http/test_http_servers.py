"""The HTTP servers of the tests serve over real sockets, survive their clients, and end in time."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.http.socket_client import Connection, ConnectionClosed
from tests.support.servers import (
    Granian,
    Gunicorn,
    HttpServer,
    Hypercorn,
    ServerFailed,
    Uvicorn,
    processes,
    require,
)

ROOT = Path(__file__).parents[2]
APPS = "tests.http.apps"

Make = Callable[[str, dict[str, str]], HttpServer]
ASGI: dict[str, Make] = {
    "uvicorn-h11": lambda app, env: Uvicorn(app, http="h11", cwd=ROOT, env=env),
    "uvicorn-httptools": lambda app, env: Uvicorn(app, http="httptools", cwd=ROOT, env=env),
    "hypercorn": lambda app, env: Hypercorn(app, cwd=ROOT, env=env),
    "granian": lambda app, env: Granian(app, cwd=ROOT, env=env),
}
WSGI: dict[str, Make] = {"gunicorn": lambda app, env: Gunicorn(app, cwd=ROOT, env=env)}
ALL = {**ASGI, **WSGI}


def make(name: str, module: str = "echo", attribute: str = "", **env: str) -> HttpServer:
    attribute = attribute or ("asgi" if name in ASGI else "wsgi")
    return require(lambda: ALL[name](f"{APPS}.{module}:{attribute}", env))


@pytest.fixture(scope="module", params=ALL)
def server(request: pytest.FixtureRequest) -> Iterator[HttpServer]:
    with make(request.param, GREETING="hello") as running:
        yield running


@pytest.fixture
def connection(server: HttpServer) -> Iterator[Connection]:
    with Connection(server.port) as connection:
        yield connection


def refuses(server: HttpServer) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def wait_for(server: HttpServer, words: str) -> None:
    processes.wait_until(lambda: words in server.log, f"{server.name} says {words!r}", 60)


# --- serving --------------------------------------------------------------------------------------


def test_connection_serves_several_requests(connection: Connection) -> None:
    first = connection.request("POST", "/orders", [("Content-Type", "text/plain")], b"book")
    assert (first.status, first.body) == (200, b"POST /orders book hello")
    assert connection.request("GET", "/orders").body == b"GET /orders  hello"
    head = connection.request("HEAD", "/orders")
    assert (head.body, head.one("Content-Length")) == (b"", "19")
    assert connection.request("GET", "/last").body == b"GET /last  hello"


def test_repeated_response_header_arrives_twice(connection: Connection) -> None:
    assert connection.request("GET", "/").all("X-TWICE") == ["1", "2"]


def test_request_sent_in_pieces_is_served(connection: Connection) -> None:
    head = connection.request_head("POST", "/", [("Content-Length", "6")])
    connection.send(head[:9], head[9:-1], head[-1:], b"in ", b"two")
    assert connection.read_response().body == b"POST / in two hello"


# Hypercorn looks only when the time of its keep-alive is over.
@pytest.mark.parametrize("name", sorted(ALL.keys() - {"hypercorn"}))
def test_server_closes_a_half_closed_connection(name: str) -> None:
    with make(name) as server, Connection(server.port) as connection:
        assert connection.request("GET", "/").status == 200
        connection.half_close()
        assert connection.is_closed()
        with pytest.raises(ConnectionClosed):
            connection.read_response()


def test_server_survives_clients_that_abort(server: HttpServer) -> None:
    before = server.pids()
    for sent in (b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"):
        lost = Connection(server.port)
        lost.send(sent)
        lost.abort()
    unread = Connection(server.port)
    unread.send_request("GET", "/unread")
    unread.abort()
    with Connection(server.port) as connection:
        assert connection.request("GET", "/").status == 200
    assert server.pids() == before


def test_abort_of_a_connection_is_a_reset_for_its_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(listener.getsockname()[1])
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(60)
            connection.abort()
            with pytest.raises(ConnectionResetError):
                accepted.recv(1)


@pytest.mark.parametrize("name", ASGI)
def test_client_joins_chunks_and_app_sees_the_disconnect(name: str) -> None:
    with make(name, attribute="streaming") as server, Connection(server.port) as connection:
        for _ in range(2):
            answer = connection.request("GET", "/")
            assert answer.one("Transfer-Encoding") == "chunked"
            assert answer.body == b"one two three"
    with make(name) as server:
        lost = Connection(server.port)
        lost.send_request("GET", "/held")
        wait_for(server, "held")
        lost.abort()
        wait_for(server, "the client has gone")


# --- ending ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_server_ends_on_sigterm_and_restarts_on_the_same_port(name: str) -> None:
    with make(name) as server:
        port, pids = server.port, server.pids()
        assert server.pid == pids[0]
        server.signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
        assert not server.is_running
        assert refuses(server)
        assert ("shut down" in server.log) == (name in ASGI)
        server.start()
        assert server.port == port
        with Connection(port) as connection:
            assert connection.request("GET", "/").status == 200
        pids += server.pids()
        folder = server.directory
    assert not any(map(processes.is_running, pids))
    assert not folder.exists()
    assert "Traceback" not in server.log


@pytest.mark.parametrize("name", ALL)
def test_no_worker_outlives_a_main_process_that_was_killed(name: str) -> None:
    with make(name) as server:
        pids = server.pids()
        server.signal(signal.SIGKILL)
        assert server.wait(60) == -signal.SIGKILL
    assert not any(map(processes.is_running, pids))
    with pytest.raises(ServerFailed, match="is not running"):
        server.signal(signal.SIGTERM)


_RUN = """
import sys
from tests.support import servers
server = getattr(servers, sys.argv[1])(sys.argv[2])
server.start()
print(*server.pids(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(("kind", "app"), [("Granian", "asgi"), ("Gunicorn", "wsgi")])
def test_worker_ends_with_the_process_that_started_its_server(kind: str, app: str) -> None:
    if not shutil.which("setpriv"):
        pytest.skip("SETPRIV IS MISSING: it is in Debian's package util-linux")
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN, kind, f"{APPS}.echo:{app}"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        pids = [int(word) for word in run.stdout.readline().split()]
        assert len(pids) == 2
        run.kill()
    processes.wait_until(lambda: not any(map(processes.is_running, pids)), "it is gone", 60)


def test_server_that_does_not_end_is_killed_after_its_grace() -> None:
    with make("uvicorn-h11") as server, Connection(server.port) as connection:
        connection.send_request("GET", "/held")
        wait_for(server, "held")
        pid = server.pid
        server.signal(signal.SIGTERM)
        with pytest.raises(ServerFailed, match="still runs after"):
            server.wait(0.1)
        server.stop(grace=0.1)
        assert not processes.is_running(pid)
        with pytest.raises(ConnectionClosed):
            connection.read_response()


# --- not starting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_failed_import_of_an_app_is_reported_with_its_reason(name: str) -> None:
    server = make(name, "failing_startup", SHOP="nowhere")
    with pytest.raises(ServerFailed, match="there is no shop called nowhere"):
        server.start()
    assert "there is no shop called nowhere" in server.log
    assert not server.directory.exists()


@pytest.mark.parametrize("name", ASGI)
def test_failed_startup_of_an_app_is_reported_with_its_reason(name: str) -> None:
    with pytest.raises(ServerFailed, match="the till is empty"):
        make(name, "failing_startup").start()
