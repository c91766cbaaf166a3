"""The proxy breaks connections between a real client and server as its controls say."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.support.servers import Postgres, Proxy, ServerFailed, require


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with require(lambda: Postgres(fast=True)) as running:
        running.execute("CREATE TABLE notes (note text PRIMARY KEY)")
        yield running


@pytest.fixture
def proxy(server: Postgres) -> Iterator[Proxy]:
    server.execute("TRUNCATE notes")
    with Proxy(server.port) as running:
        yield running


@pytest.fixture
def client(server: Postgres, proxy: Proxy) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.url(port=proxy.port), autocommit=True) as connection:
        yield connection


def note(client: psycopg.Connection, text: str) -> None:
    client.execute("INSERT INTO notes VALUES (%s)", (text,))


def all_notes(server: Postgres) -> list[str]:
    return sorted(text for (text,) in server.execute("SELECT note FROM notes"))


def test_an_unbroken_proxy_passes_everything_on(
    server: Postgres, client: psycopg.Connection
) -> None:
    large = "x" * 3_000_000
    assert client.execute("SELECT %s::text", (large,)).fetchone() == (large,)
    note(client, "one")
    assert all_notes(server) == ["one"]


def test_a_cut_client_gets_a_reset_and_may_reconnect(
    server: Postgres, proxy: Proxy, client: psycopg.Connection
) -> None:
    assert proxy.connections == 1
    proxy.cut()
    assert proxy.connections == 0
    with pytest.raises(psycopg.OperationalError):
        note(client, "lost")
    with psycopg.connect(server.url(port=proxy.port), autocommit=True) as again:
        note(again, "back")
    assert all_notes(server) == ["back"]


def test_a_dropped_reply_is_an_error_for_the_client_after_the_server_did_the_work(
    server: Postgres, proxy: Proxy, client: psycopg.Connection
) -> None:
    proxy.drop_replies()
    with pytest.raises(psycopg.OperationalError):
        note(client, "done")
    proxy.wait_until_dropped()
    assert all_notes(server) == ["done"]


def test_only_the_reply_to_the_commit_is_dropped(
    server: Postgres, proxy: Proxy, client: psycopg.Connection
) -> None:
    proxy.drop_replies(after=b"COMMIT")
    client.execute("BEGIN")
    note(client, "one")
    note(client, "two")
    assert client.execute("SELECT count(*) FROM notes").fetchone() == (2,)
    with pytest.raises(psycopg.OperationalError):
        client.execute("COMMIT")
    assert all_notes(server) == ["one", "two"]
    with psycopg.connect(server.url(port=proxy.port)) as again:
        again.execute("SELECT 1")
        again.commit()  # only one reply was to be lost


def test_a_client_gets_the_first_bytes_of_a_reply_that_is_cut_short() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Proxy(listener.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client,
    ):
        proxy.drop_replies(b"ask", keep=4)
        client.sendall(b"ask")
        server, _ = listener.accept()
        with server:
            assert server.recv(3) == b"ask"
            server.sendall(b"0123456789")
            proxy.wait_until_dropped()
            assert client.recv(4) == b"0123"
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_held_requests_reach_the_server_when_resumed(
    server: Postgres, proxy: Proxy, client: psycopg.Connection
) -> None:
    proxy.hold("requests")
    sender = threading.Thread(target=note, args=(client, "late"))
    sender.start()
    proxy.wait_until_held("requests")
    assert all_notes(server) == []
    proxy.resume()
    sender.join()
    assert all_notes(server) == ["late"]


def test_a_client_waits_for_held_replies_to_work_that_is_done(
    server: Postgres, proxy: Proxy, client: psycopg.Connection
) -> None:
    proxy.hold("replies")
    sender = threading.Thread(target=note, args=(client, "done"))
    sender.start()
    proxy.wait_until_held("replies")
    assert all_notes(server) == ["done"]
    assert sender.is_alive()
    proxy.heal()
    sender.join()


def test_connections_are_refused_until_the_proxy_accepts_again(
    server: Postgres, proxy: Proxy, client: psycopg.Connection
) -> None:
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(server.url(port=proxy.port))
    note(client, "was open")
    proxy.accept()
    psycopg.connect(server.url(port=proxy.port)).close()


def test_a_client_of_a_server_that_is_down_gets_a_reset(proxy: Proxy) -> None:
    with Proxy(1) as nowhere, pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{nowhere.port}/postgres")


def test_waiting_for_a_fault_that_does_not_happen_fails(proxy: Proxy) -> None:
    with pytest.raises(ServerFailed, match="no reply was lost"):
        proxy.wait_until_dropped(seconds=0.01)
    with pytest.raises(ServerFailed, match="requests are held"):
        proxy.wait_until_held(seconds=0.01)


def test_a_connection_accepted_while_the_proxy_closes_is_closed_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(50):
            proxy = Proxy(listener.getsockname()[1])
            proxy.start()
            clients = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(3)]
            proxy.close()
            for client in clients:
                client.close()
    gc.collect()  # a socket that was left open warns here


def test_clients_that_name_themselves_so_are_rejected_until_the_proxy_is_healed(
    server: Postgres, proxy: Proxy
) -> None:
    url = server.url(port=proxy.port)
    with (
        psycopg.connect(f"{url}?application_name=first", autocommit=True) as first,
        psycopg.connect(f"{url}?application_name=second", autocommit=True) as second,
    ):
        proxy.reject(b"first")
        with pytest.raises(psycopg.OperationalError):
            note(first, "lost")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"{url}?application_name=first")
        note(second, "passed on")
    proxy.heal()
    psycopg.connect(f"{url}?application_name=first").close()
    assert all_notes(server) == ["passed on"]
