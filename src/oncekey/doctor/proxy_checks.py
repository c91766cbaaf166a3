"""Checks of proxies in front of an app: whether they send a POST again by themselves.

They read the text of configuration files that the user names, line by line, and know the directives
of nginx, HAProxy, Envoy (with Istio) and Traefik. They do not follow includes, and do not know
which section serves which route: a finding names the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from oncekey.stores.checkup import Check, Finding

PROXY_FILE_MAX_BYTES: Final = 4 * 1024 * 1024

RETRIES: Final = Check(
    "proxy.retries",
    "whether a proxy sends a POST again by itself (nginx, HAProxy, Envoy, Istio, Traefik)",
    "what has no key, or is not guarded, is then carried out twice without any client knowing; "
    "with a key the client gets 409 for the proxy's second try in place of the answer",
    "nginx: remove non_idempotent from *_next_upstream; HAProxy: http-request disable-l7-retry if "
    "METH_POST; Envoy, Istio: only connect-failure, refused-stream and reset-before-request in "
    "retry_on; Traefik: remove retryNonIdempotentMethod",
)
PROXY_CHECKS: Final = (RETRIES,)

_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_NGINX: Final = re.compile(r"\b(\w+_next_upstream)\s+([^;]*)")
_HAPROXY: Final = re.compile(r"^\s*retry-on\s+(.+)$")
_HAPROXY_SECTION: Final = re.compile(r"^(global|defaults|frontend|backend|listen)\b")
_HAPROXY_SPARED: Final = re.compile(r"^\s*http-request\s+disable-l7-retry\b")
_ENVOY: Final = re.compile(r"[\"']?\b(?:retry_on|retryOn)[\"']?\s*:\s*[\"']?([\w\s,-]+)")
_TRAEFIK: Final = re.compile(r"\bretryNonIdempotentMethod[\"']?\s*[:=]\s*[\"']?true", re.IGNORECASE)
# Conditions under which the request cannot have reached the app.
_HAPROXY_SAFE: Final = frozenset(("none", "conn-failure", "0rtt-rejected"))
_ENVOY_SAFE: Final = frozenset(("connect-failure", "refused-stream", "reset-before-request"))
# What shows that a file is a configuration of one of them at all.
_KNOWN: Final = re.compile(
    r"\b(proxy_pass|upstream|fastcgi_pass|grpc_pass|uwsgi_pass|server_name|route_config|routeConfig"
    r"|virtual_hosts|virtualHosts|VirtualService|static_resources|retry_policy|retryPolicy"
    r"|entryPoints|middlewares|routers)\b|^(defaults|frontend|backend|listen)\b",
    re.MULTILINE,
)


class _Retry(NamedTuple):
    """A directive that sends a POST again."""

    line: int
    text: str


def proxy_findings(files: Iterable[str]) -> Iterator[Finding]:
    """One finding per file; without files, one that says that nothing was checked."""
    named = list(files)
    if not named:
        yield RETRIES.info(
            "not checked: no configuration of a proxy was given",
            "name the files with --proxy-config",
        )
    for name in named:
        yield _file(name)


def _file(name: str) -> Finding:
    try:
        with Path(name).open("rb") as file:
            raw = file.read(PROXY_FILE_MAX_BYTES + 1)
    except OSError as error:
        return RETRIES.warning(f"not checked: {error}", "name a file that can be read")
    if len(raw) > PROXY_FILE_MAX_BYTES:
        return RETRIES.warning(
            f"not checked: {name} has more than {PROXY_FILE_MAX_BYTES:,} bytes", "split the file"
        )
    text = raw.decode("utf-8", "replace")
    found = proxy_retries(text)
    if found:
        each = ", ".join(f"{name}:{retry.line}: {retry.text}" for retry in found)
        return RETRIES.warning(f"a POST can be sent again: {each}")
    if not _KNOWN.search(text):
        return RETRIES.info(
            f"not checked: {name} has nothing of nginx, HAProxy, Envoy, Istio or Traefik",
            "name the file that has the routes or the upstreams",
        )
    return RETRIES.ok(f"{name} retries no POST that may have reached the app")


def proxy_retries(text: str) -> list[_Retry]:
    """The lines of a configuration that send a POST again."""
    lines = [_COMMENT.sub("", line) for line in text.splitlines()]
    found = [
        _Retry(number, line.strip())
        for number, line in enumerate(lines, 1)
        if _is_unsafe_nginx(line) or _is_unsafe_envoy(line) or _TRAEFIK.search(line)
    ]
    return sorted([*found, *_haproxy_retries(lines)])


def _is_unsafe_nginx(line: str) -> bool:
    directive = _NGINX.search(line)
    return directive is not None and "non_idempotent" in directive[2].split()


def _is_unsafe_envoy(line: str) -> bool:
    policy = _ENVOY.search(line)
    if policy is None:
        return False
    conditions = {condition.strip() for condition in policy[1].split(",")}
    return bool(conditions - _ENVOY_SAFE - {""})


def _haproxy_retries(lines: list[str]) -> Iterator[_Retry]:
    """Retries in sections that do not spare any request from them. What stands in `defaults` holds
    for all later sections, so it is spared only by a rule of its own section."""
    retries: list[_Retry] = []
    is_spared = False
    for number, line in enumerate([*lines, "global"], 1):
        if _HAPROXY_SECTION.match(line):
            if not is_spared:
                yield from retries
            retries, is_spared = [], False
        elif _HAPROXY_SPARED.match(line):
            is_spared = True
        elif (directive := _HAPROXY.match(line)) and set(directive[1].split()) - _HAPROXY_SAFE:
            retries.append(_Retry(number, line.strip()))
