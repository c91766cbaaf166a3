"""Guarded FastAPI routes over a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.http.app_server import BOB, ServedApp, serve_app
from tests.http.socket_client import Response
from tests.support.servers import require
from tests.support.servers.http_servers import Uvicorn
from tests.support.servers.processes import wait_until

NOBODY = ("Authorization", "Bearer mallory")


@pytest.fixture(scope="module")
def running() -> Iterator[ServedApp]:
    require(lambda: Uvicorn("x:y"))
    with serve_app(Uvicorn, "tests.http.fastapi_apps.guarded_routes:app") as made:
        yield made


@pytest.fixture
def app(running: ServedApp) -> ServedApp:
    running.reset()
    return running


def replayed(response: Response) -> bool:
    return response.one("X-Idempotency-Replayed") == "true"


def problem_of(response: Response) -> str:
    assert response.one("Content-Type") == "application/problem+json"
    problem = json.loads(response.body)
    assert problem["status"] == response.status
    return str(problem["type"]).removeprefix("/policy#")


def twice(app: ServedApp, path: str, body: object = None) -> tuple[Response, Response]:
    key = app.fresh_key()
    return app.post(path, key, body), app.post(path, key, body)


# --- authentication and validation come first ----------------------------------------------------


@pytest.mark.parametrize(("who", "status"), [(NOBODY, 401), (BOB, 403), (None, 401)])
def test_i15_a_refused_caller_gets_no_part_of_a_stored_response(
    app: ServedApp, who: tuple[str, str] | None, status: int
) -> None:
    key = app.fresh_key()
    first = app.post("/charges", key, {"cents": 5})
    assert first.status == 201
    again = app.post("/charges", key, {"cents": 5}, who=who)
    assert again.status == status
    assert not replayed(again)
    assert again.one("X-Idempotency-Retention") is None
    assert b"number" not in again.body
    assert app.effects("auth") == 2, "the app's own dependency has decided"


def test_i15_a_refused_caller_claims_nothing(app: ServedApp) -> None:
    key = app.fresh_key()
    assert app.post("/charges", key, {"cents": 1}, who=NOBODY).status == 401
    # Another body would be a mismatch, had the key been claimed by anybody.
    assert app.post("/charges", key, {"cents": 2}).status == 201
    assert app.effects("charge") == 1


def test_i15_authentication_runs_for_each_replay(app: ServedApp) -> None:
    twice(app, "/charges", {"cents": 5})
    assert (app.effects("auth"), app.effects("charge")) == (2, 1)


@pytest.mark.parametrize("bad", [{"cents": "many"}, {}, b"{", b""])
def test_a_body_that_fails_validation_claims_and_stores_nothing(
    app: ServedApp, bad: object
) -> None:
    key = app.fresh_key()
    for _ in range(2):
        refused = app.post("/charges", key, bad)
        assert refused.status == 422
        assert refused.one("Content-Type") == "application/json"
        assert not replayed(refused)
    good = app.post("/charges", key, {"cents": 5})
    assert (good.status, replayed(good)) == (201, False)


def test_a_retry_is_validated_before_it_is_replayed(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/charges", key, {"cents": 5})
    assert b"detail" in app.post("/charges", key, {"cents": "many"}).body


def test_missing_and_invalid_keys_are_refused_after_authentication(app: ServedApp) -> None:
    assert problem_of(app.post("/charges", None, {"cents": 5})) == "missing-key"
    assert problem_of(app.post("/charges", "a b", {"cents": 5})) == "invalid-key"
    assert app.post("/charges", None, {"cents": 5}, who=NOBODY).status == 401
    assert app.effects("charge") == 0


# --- replays ------------------------------------------------------------------------------------


def test_i3_a_retry_gets_the_same_bytes_and_headers(app: ServedApp) -> None:
    first, again = twice(app, "/charges", {"cents": 5})
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body == b'{"number":%d,"cents":5}' % json.loads(first.body)["number"]
    assert (replayed(first), replayed(again)) == (False, True)
    for name in ("Location", "X-Cost", "Content-Type", "Content-Length"):
        assert first.one(name) == again.one(name) is not None, name
    assert again.one("X-No") is None
    assert first.one("Set-Cookie") is not None
    assert again.one("Set-Cookie") is None
    assert first.one("X-Idempotency-Retention") == "86400"
    assert 86_000 < int(again.one("X-Idempotency-Retention") or 0) <= 86_400
    assert app.effects("charge") == 1


def test_i7_another_body_is_refused_and_reordered_or_ignored_members_replayed(
    app: ServedApp,
) -> None:
    key = app.fresh_key()
    app.post("/charges", key, b'{"cents":1,"note":"a"}')
    assert replayed(app.post("/charges", f'"{key}"', b'{ "note":"a", "cents":1, "sent_at":"2"}'))
    other = app.post("/charges", key, {"cents": 2})
    assert (other.status, problem_of(other)) == (422, "key-reused")
    assert problem_of(app.post("/other", key)) == "key-reused"
    assert problem_of(app.post("/charges?x=1", key, b'{"cents":1,"note":"a"}')) == "key-reused"
    assert app.effects("charge") == 1


@pytest.mark.parametrize("path", ["/text", "/binary", "/stream", "/large?size=2000000"])
def test_every_kind_of_body_is_replayed(app: ServedApp, path: str) -> None:
    first, again = twice(app, path)
    assert first.status == 200
    assert (first.body, first.one("Content-Type")) == (again.body, again.one("Content-Type"))
    assert len(first.body) > 5
    assert (replayed(first), replayed(again)) == (False, True)
    assert app.effects(path[1:].partition("?")[0]) == 1


@pytest.mark.parametrize("code", [200, 204, 302, 400, 404, 500])
def test_every_status_is_replayed(app: ServedApp, code: int) -> None:
    first, again = twice(app, f"/status/{code}")
    assert (first.status, again.status) == (code, code)
    assert first.body == again.body
    assert replayed(again)
    assert app.effects("status") == 1


@pytest.mark.parametrize("code", [400, 404, 409, 500])
def test_an_http_exception_is_stored_and_replayed(app: ServedApp, code: int) -> None:
    first, again = twice(app, f"/raise/{code}")
    assert (first.status, again.status) == (code, code)
    assert first.body == again.body == b'{"detail":{"because":%d}}' % code
    assert replayed(again)
    assert app.effects("refuse") == 1


@pytest.mark.parametrize("code", [401, 403, 429, 503])
def test_401_403_429_and_503_free_the_key(app: ServedApp, code: int) -> None:
    first, again = twice(app, f"/raise/{code}")
    assert (first.status, again.status) == (code, code)
    assert first.one("X-Idempotency-Retention") is None
    assert not replayed(again)
    assert app.effects("refuse") == 2


def test_a_response_of_the_apps_exception_handler_is_replayed(app: ServedApp) -> None:
    first, again = twice(app, "/stock")
    assert first.body == again.body == b'{"error":"out of stock"}'
    assert first.one("ETag") == again.one("ETag") == '"none"'
    assert app.effects("stock") == 1


@pytest.mark.parametrize("path", ["/crash", "/wrong-model"])
def test_i1_an_endpoint_that_raised_is_not_run_again(app: ServedApp, path: str) -> None:
    first, again = twice(app, path)
    assert (first.status, first.body) == (500, b"Internal Server Error")
    assert problem_of(again) == "failed"
    assert b"s3cret" not in again.body
    assert app.effects(path[1:]) == 1


def test_a_retry_safe_endpoint_that_raised_frees_its_key(app: ServedApp) -> None:
    first, again = twice(app, "/crash-safely")
    assert (first.status, again.status) == (500, 200)
    assert app.effects("crash-safely") == 2


def test_a_sync_endpoint_runs_in_a_thread_with_its_attempt(app: ServedApp) -> None:
    first, again = twice(app, "/blocking")
    assert first.body == again.body
    seen = json.loads(first.body)
    assert (seen["attempt"], seen["in thread"]) == (1, True)
    assert app.effects("blocking") == 1


def test_an_optional_key_guards_only_requests_that_have_one(app: ServedApp) -> None:
    assert [json.loads(app.post("/optional", None).body)["key"] for _ in range(2)] == [None] * 2
    assert app.effects("optional") == 2
    key = app.fresh_key()
    first, again = app.post("/optional", key), app.post("/optional", key)
    assert first.body == again.body
    assert json.loads(first.body)["key"] == key
    assert app.effects("optional") == 3


def test_dependencies_with_yield_are_ended_after_a_replay_too(app: ServedApp) -> None:
    first, again = twice(app, "/locked")
    assert first.body == again.body == b'{"lock":"held"}'
    wait_until(lambda: app.effects("unlock") == 2, "both are unlocked")
    assert (app.effects("lock"), app.effects("locked")) == (3, 1)


def test_a_form_retried_with_another_boundary_is_the_same_request(app: ServedApp) -> None:
    key = app.fresh_key()

    def send(boundary: str, content: bytes) -> Response:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        body = head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
        media = ("Content-Type", f"multipart/form-data; boundary={boundary}")
        headers = [h for h in app.headers(key) if h[0] != "Content-Type"]
        with app.connect() as connection:
            return connection.request("POST", "/upload", [*headers, media], body)

    first, again = send("one", b"abc"), send("two", b"abc")
    assert first.body == again.body == b'{"size":3}'
    assert problem_of(send("three", b"abd")) == "key-reused"
    assert app.effects("upload") == 1
    assert problem_of(send("four", b"x" * 100_001)) == "request-too-large"


def test_a_guarded_router_is_guarded_under_prefixes(app: ServedApp) -> None:
    first, again = twice(app, "/v1/shop/carts/7")
    assert first.body == again.body == b'{"cart":"7"}'
    assert replayed(again)
    assert app.effects("fill") == 1
    assert problem_of(app.post("/v1/shop/carts/7", None)) == "missing-key"
    for _ in range(2):
        assert app.post("/v1/shop/carts/7", None, method="GET").status == 200
        assert app.post("/v1/shop/free", "k").status == 200
    assert (app.effects("look"), app.effects("free")) == (2, 2)


# --- concurrent requests and disconnects ----------------------------------------------------------


def test_i1_twenty_concurrent_requests_run_once(app: ServedApp) -> None:
    key = app.fresh_key()
    start = threading.Barrier(20)

    def post(_: int) -> Response:
        with app.connect() as connection:
            start.wait()
            return app.request_on(connection, "/twenty", key)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(20)))
    assert {(answer.status, answer.body) for answer in answers} == {(200, answers[0].body)}
    assert sum(replayed(answer) for answer in answers) == 19
    assert app.effects("twenty") == 1


def test_a_duplicate_of_a_running_request_gets_409_with_retry_after(app: ServedApp) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/gated", app.headers(key))
        app.wait_at_gate("gated")
        busy = app.post("/gated", key)
        assert (busy.status, problem_of(busy)) == (409, "in-flight")
        assert int(busy.one("Retry-After") or 0) >= 1
        app.open_gate("gated")
        assert connection.read_response().body == b'{"done":true}'
    assert app.effects("gated") == 1


def test_i14_the_result_of_a_disconnected_client_is_stored(app: ServedApp) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/gated", app.headers(key))
        app.wait_at_gate("gated")
        connection.abort()
    app.open_gate("gated")

    def settled() -> bool:
        return app.post("/gated", key).status != 409

    wait_until(settled, "the abandoned request has ended")
    again = app.post("/gated", key)
    assert (again.body, replayed(again)) == (b'{"done":true}', True)
    assert app.effects("gated") == 1


def test_a_background_task_starts_after_the_outcome_and_delays_no_response(app: ServedApp) -> None:
    key = app.fresh_key()
    first = app.post("/background", key)  # answered, though its task waits for a gate
    app.wait_at_gate("afterwards")
    again = app.post("/background", key)
    assert first.body == again.body == b'{"done":true}'
    assert replayed(again)
    assert app.effects("afterwards ends") == 0
    app.open_gate("afterwards")
    wait_until(lambda: app.effects("afterwards ends") == 1, "the task ends")
    assert app.effects("afterwards begins") == 1, "a replay has no task"
    assert app.effects("background") == 1
