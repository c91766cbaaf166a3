"""`step_result`: what a step stores of a response of httpx or requests, from a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
import requests

from oncekey import Once
from oncekey.client.step_result import step_result
from oncekey.core.step_format import StepResult

JSON = "application/json"


class Provider:
    """A server that responds to every POST as `respond_with` says."""

    def __init__(self) -> None:
        self.status, self.kind, self.body = 200, JSON, b""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(provider.status)
                if provider.kind:
                    self.send_header("Content-Type", provider.kind)
                self.send_header("Content-Length", str(len(provider.body)))
                self.end_headers()
                self.wfile.write(provider.body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def respond_with(self, status: int, body: bytes, kind: str = JSON) -> str:
        self.status, self.kind, self.body = status, kind, body
        return self.url

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module", params=["httpx", "requests"])
def post(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: Any = requests.Session()
    if request.param == "httpx":
        made = httpx.Client(trust_env=False, timeout=60)
    with made:
        yield made.post


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("status", "body", "kind", "expected"),
    [
        (201, b'{"id": "ch_7", "n": 1}', JSON, StepResult({"id": "ch_7", "n": 1}, "ch_7", 201)),
        (200, b'{"id": 7}', "application/problem+json; x=1", StepResult({"id": 7}, 7, 200)),
        (200, b'{"id": "\xc3\xa9"}', "", StepResult({"id": "é"}, "é", 200)),
        (200, b'{"n": 1}', JSON, StepResult({"n": 1}, None, 200)),
        (200, b'{"id": true}', JSON, StepResult({"id": True}, None, 200)),
        (200, b'{"id": {"a": 1}}', JSON, StepResult({"id": {"a": 1}}, None, 200)),
        (200, b'{"id": null}', JSON, StepResult({"id": None}, None, 200)),
        (200, b'[{"id": 1}]', JSON, StepResult([{"id": 1}], None, 200)),
        (202, b"accepted", "text/plain", StepResult("accepted", None, 202)),
        (200, b"123", "text/plain", StepResult("123", None, 200)),
        (200, b"{not json", JSON, StepResult("{not json", None, 200)),
        (200, b'{"id": NaN}', JSON, StepResult('{"id": NaN}', None, 200)),
        (200, b"[-Infinity]", JSON, StepResult("[-Infinity]", None, 200)),
        (200, b'{"id": "\\ud800"}', JSON, StepResult('{"id": "\\ud800"}', None, 200)),
        (204, b"", "", StepResult(None, None, 204)),
        (303, b"", "", StepResult(None, None, 303)),
    ],
)
def test_step_result_has_value_status_and_external_id(
    provider: Provider, post: Any, status: int, body: bytes, kind: str, expected: Any
) -> None:
    assert step_result(post(provider.respond_with(status, body, kind))) == expected


def test_step_result_takes_another_member_as_external_id(provider: Provider, post: Any) -> None:
    url = provider.respond_with(200, b'{"id": "no", "charge": "ch_8"}')
    result = step_result(post(url), id="charge")
    assert (result.external_id, result.value["id"]) == ("ch_8", "no")


@pytest.mark.parametrize("status", [400, 404, 409, 422, 500, 503])
def test_step_result_raises_the_librarys_error_for_a_failure(
    provider: Provider, post: Any, status: int
) -> None:
    response = post(provider.respond_with(status, b'{"id": "ch_7"}'))
    with pytest.raises((httpx.HTTPStatusError, requests.HTTPError)) as raised:
        step_result(response)
    assert vars(raised.value)["response"] is response


def test_a_step_stores_status_and_external_id_with_the_value(provider: Provider, post: Any) -> None:
    url = provider.respond_with(201, b'{"id": "ch_7"}')
    with Once("memory://") as once:

        def body(attempt: Any) -> Any:
            return attempt.step("charge", lambda key: step_result(post(url)))

        assert once.run("order", "k", body).value == {"id": "ch_7"}
        status = once.get("order", "k")
    assert status is not None
    (step,) = status.steps
    assert (step.value, step.external_id, step.status) == ({"id": "ch_7"}, "ch_7", "201")
