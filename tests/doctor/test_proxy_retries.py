"""Doctor finds the directives by which a proxy sends a POST again, takes its key away or caches it,
and never guesses a good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncekey.doctor import proxy_checks
from oncekey.doctor.proxy_checks import PROXY_CHECKS, proxy_findings, proxy_retries
from oncekey.stores.inspection import Severity

UNSAFE = {
    "nginx": ("location / {\n  proxy_next_upstream error timeout non_idempotent;\n}", [2]),
    "nginx, grpc": ("grpc_next_upstream error non_idempotent http_503;", [1]),
    "HAProxy": ("backend app\n  retry-on all-retryable-errors\n  retries 3", [2]),
    "HAProxy, a status": ("backend app\n    retry-on conn-failure 503", [2]),
    "HAProxy, spared elsewhere": (
        "defaults\n  retry-on empty-response\n"
        "backend app\n  http-request disable-l7-retry if METH_POST",
        [2],
    ),
    "HAProxy, the section before is spared": (
        "backend a\n  http-request disable-l7-retry if METH_POST\n"
        "backend b\n  retry-on all-retryable-errors",
        [4],
    ),
    "Envoy": ("retry_policy:\n  retry_on: connect-failure,5xx\n", [2]),
    "Envoy, JSON": ('{"retry_policy": {"retry_on": "gateway-error"}}', [1]),
    "Istio": ("kind: VirtualService\nretries:\n  retryOn: reset,connect-failure", [3]),
    "Traefik": ("middlewares:\n  again:\n    retry:\n      retryNonIdempotentMethod: true", [4]),
    "nginx, over lines": (
        "proxy_pass http://a;\nproxy_next_upstream\n  error\n  non_idempotent\n  timeout;",
        [2],
    ),
    "HAProxy, over lines": ("backend app\n  retry-on conn-failure \\\n    503\n  retries 3", [2]),
    "Envoy, a folded text": ("retry_policy:\n  retry_on: >-\n    connect-failure,\n    5xx\n", [2]),
    "Envoy, the next line": ("retry_policy:\n  retry_on:\n    5xx\n  num_retries: 2\n", [2]),
    "Envoy, JSON over lines": (
        '{"retry_policy":\n {"retry_on":\n "5xx",\n "num_retries": 2}}',
        [2],
    ),
    "Envoy, JSON without blanks": ('{"retry_policy":{"retry_on":"5xx","num_retries":2}}', [1]),
}
SAFE = {
    "nginx": "location / {\n  proxy_pass http://app;\n  proxy_next_upstream error timeout;\n}",
    "nginx, a comment": "proxy_pass http://app;\n# proxy_next_upstream error non_idempotent;",
    "HAProxy": "backend app\n  retry-on conn-failure\n  option redispatch\n  retries 3",
    "HAProxy, spared": (
        "backend app\n  retry-on all-retryable-errors\n  http-request disable-l7-retry if METH_POST"
    ),
    "Envoy": "retry_policy:\n  retry_on: connect-failure, refused-stream, reset-before-request",
    "Traefik": "routers:\n  app: {}\nmiddlewares:\n  again:\n    retry:\n      attempts: 4",
    "nginx, the next directive": (
        "proxy_pass http://a;\nproxy_next_upstream\n  error;\nset $why non_idempotent;"
    ),
    "HAProxy, over lines": "backend app\n  retry-on conn-failure \\\n    0rtt-rejected",
    "Envoy, over lines": (
        "retry_policy:\n  retry_on: >-\n    connect-failure,\n    refused-stream\n  x: 5xx"
    ),
    "Envoy, JSON": '{"retry_policy": {\n"retry_on": "connect-failure", "num_retries": 2}}',
    "Envoy, between brackets": "retry_policy: {retry_on: connect-failure, num_retries: 2}",
}


@pytest.mark.parametrize("name", UNSAFE)
def test_a_proxy_that_sends_a_post_again_is_named(name: str, tmp_path: Path) -> None:
    text, lines = UNSAFE[name]
    assert [retry.number for retry in proxy_retries(text)] == lines
    file = tmp_path / "proxy.conf"
    file.write_text(text)
    found, *others = proxy_findings([str(file)])
    assert found.severity is Severity.WARNING
    assert f"{file}:{lines[0]}: " in found.what
    assert {other.severity for other in others} == {Severity.OK}


@pytest.mark.parametrize("name", SAFE)
def test_a_proxy_that_does_not_is_no_fault(name: str, tmp_path: Path) -> None:
    file = tmp_path / "proxy.conf"
    file.write_text(SAFE[name])
    found = list(proxy_findings([str(file)]))
    assert [one.check for one in found] == [check.name for check in PROXY_CHECKS]
    assert {one.severity for one in found} == {Severity.OK}


KEYLESS = {
    "nginx, emptied": 'proxy_pass http://app;\nproxy_set_header Idempotency-Key "";',
    "nginx, single quotes": "proxy_pass http://app;\nproxy_set_header idempotency-key '';",
    "nginx, one of its own": "proxy_pass http://app;\ngrpc_set_header Idempotency-Key $request_id;",
    "nginx, a parameter": 'fastcgi_pass app;\nfastcgi_param HTTP_IDEMPOTENCY_KEY "";',
    "nginx, no header": "proxy_pass http://app;\nproxy_pass_request_headers off;",
    "HAProxy": "backend app\n  http-request del-header Idempotency-Key",
    "HAProxy, set": "backend app\n  http-request set-header Idempotency-Key %[uuid()]",
    "Envoy": "route_config:\n  request_headers_to_remove: [x-a, idempotency-key]",
    "Traefik": 'middlewares:\n  a: {headers: {customRequestHeaders: {Idempotency-Key: ""}}}',
    "nginx, over lines": (
        "proxy_pass http://app;\nproxy_set_header\n  Idempotency-Key\n  $request_id;"
    ),
    "nginx, several names": (
        "proxy_pass http://app;\nmore_clear_input_headers 'X-A'\n  'Idempotency-Key' 'X-B';"
    ),
    "HAProxy, over lines": "backend app\n  http-request del-header \\\n    Idempotency-Key",
    "HAProxy, replaced": "backend app\n  http-request replace-header Idempotency-Key (.*) x-\\1",
    "Envoy, a list": "route_config:\n  request_headers_to_remove:\n  - x-a\n  - idempotency-key\n",
    "Envoy, an indented list": (
        "route_config:\n- request_headers_to_remove:\n    # a\n\n    - 'Idempotency-Key'\n    - x-a"
    ),
    "Envoy, brackets over lines": (
        "route_config:\n  request_headers_to_remove: [\n    x-a,\n  idempotency-key\n  ]"
    ),
    "Envoy, JSON": (
        '{"route_config": {\n"requestHeadersToRemove":\n[\n"x-a", "idempotency-key"\n]}}'
    ),
    "Traefik, one for all": (
        "middlewares: {}\ncustomRequestHeaders:\n  X-A: a\n  Idempotency-Key: same\n"
    ),
}
KEYED = {
    "nginx": "proxy_pass http://app;\nproxy_set_header Idempotency-Key $http_idempotency_key;",
    "nginx, a comment": 'proxy_pass http://app;\n# proxy_set_header Idempotency-Key "";',
    "nginx, another header": 'proxy_pass http://app;\nproxy_set_header Connection "";',
    "HAProxy": "backend app\n  http-request set-header Idempotency-Key %[req.hdr(Idempotency-Key)]",
    "nginx, over lines": (
        "proxy_pass http://app;\nproxy_set_header Idempotency-Key \n  ${http_idempotency_key};"
    ),
    "nginx, others are cleared": (
        "proxy_pass http://app;\nmore_clear_input_headers X-A;\nadd_header A Idempotency-Key;"
    ),
    "Envoy, another list": (
        "route_config:\n  request_headers_to_remove:\n  - x-a\n  response_headers_to_remove:\n"
        "  - idempotency-key\n"
    ),
    "Envoy, the list of the next": (
        "virtual_hosts:\n- request_headers_to_remove: [x-a]\n- name: idempotency-key\n"
    ),
    "Envoy, a longer name": "route_config:\n  request_headers_to_remove:\n  - x-idempotency-key",
}


@pytest.mark.parametrize("name", KEYLESS)
def test_a_proxy_that_takes_the_key_away_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / "proxy.conf"
    file.write_text(KEYLESS[name])
    found = {one.check: one for one in proxy_findings([str(file)])}
    assert found["proxy.keys"].severity is Severity.BROKEN
    assert f"{file}:2: " in found["proxy.keys"].what


@pytest.mark.parametrize("name", KEYED)
def test_a_proxy_that_passes_the_key_on_is_no_fault(name: str, tmp_path: Path) -> None:
    file = tmp_path / "proxy.conf"
    file.write_text(KEYED[name])
    assert {one.severity for one in proxy_findings([str(file)])} == {Severity.OK}


@pytest.mark.parametrize(
    "line",
    [
        "proxy_cache_methods GET HEAD POST;",
        "fastcgi_cache_methods POST;",
        'proxy_cache_methods GET "POST";',
        "proxy_cache_methods GET HEAD\n  POST;",
        "proxy_cache_methods\n  GET\n  # and what we should not\n  POST\n;",
    ],
)
def test_a_proxy_that_caches_posts_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(f"proxy_pass http://app;\n{line}\nproxy_cache_methods GET HEAD;\nset $a POST;")
    found = {one.check: one for one in proxy_findings([str(file)])}
    assert found["proxy.cache"].severity is Severity.BROKEN
    assert f"{file}:2: " in found["proxy.cache"].what
    assert found["proxy.cache"].what.count(f"{file}:") == 1


def test_without_a_file_nothing_is_called_good() -> None:
    (found,) = proxy_findings([])
    assert found.severity is Severity.INFO
    assert "not checked" in found.what
    assert "--proxy-config" in found.mend


def test_a_file_of_something_else_is_not_called_good(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Dear proxy, please do not retry.")
    (found,) = proxy_findings([str(tmp_path / "notes.txt")])
    assert found.severity is Severity.INFO
    assert "not checked" in found.what


def test_a_file_that_cannot_be_read_is_not_called_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (missing,) = proxy_findings([str(tmp_path / "none.conf")])
    assert missing.severity is Severity.WARNING
    (tmp_path / "large.conf").write_text(SAFE["nginx"])
    monkeypatch.setattr(proxy_checks, "PROXY_FILE_MAX_BYTES", 10)
    (large,) = proxy_findings([str(tmp_path / "large.conf")])
    assert large.severity is Severity.WARNING
    assert "not checked" in large.what
