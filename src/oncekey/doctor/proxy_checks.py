"""Checks of proxies in front of an app: whether they send a POST again by themselves, change its
key, or answer it from a cache.

They read the text of configuration files that the user names, line by line, and know the directives
of nginx, HAProxy, Envoy (with Istio) and Traefik. They do not follow includes, and do not know
which section serves which route: a finding names the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
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
KEYS: Final = Check(
    "proxy.keys",
    "whether a proxy passes the Idempotency-Key on as it came (nginx, HAProxy, Envoy, Traefik)",
    "a request whose key is removed is refused, or runs unprotected; one that gets a new key at "
    "each try is carried out at each try",
    "remove the directive: proxies pass the header on by themselves",
)
CACHE: Final = Check(
    "proxy.cache",
    "whether a proxy answers a POST from its cache (nginx)",
    "one request gets the answer of another, and its own is not carried out",
    "remove POST from *_cache_methods",
)
PROXY_CHECKS: Final = (RETRIES, KEYS, CACHE)

_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_NGINX: Final = re.compile(r"\b(\w+_next_upstream)\s+([^;]*)")
_NGINX_KEY: Final = re.compile(
    r"\b\w+_(?:set_header|param)\s+[\"']?(?:HTTP_)?Idempotency[-_]Key[\"']?\s+([^;]*)",
    re.IGNORECASE,
)
_NGINX_KEEPS: Final = "$http_idempotency_key"
_NGINX_NO_HEADERS: Final = re.compile(r"\b\w+_pass_request_headers\s+off\b")
_NGINX_CACHE: Final = re.compile(r"\b\w+_cache_methods\s+([^;]*)")
_HAPROXY_KEY: Final = re.compile(
    r"^\s*http-request\s+(?:del-header|set-header)\s+Idempotency-Key\b(.*)", re.IGNORECASE
)
_HAPROXY_KEEPS: Final = re.compile(r"hdr\(Idempotency-Key\b", re.IGNORECASE)
_ENVOY_KEY: Final = re.compile(r"request_headers_to_remove.*\bidempotency-key\b", re.IGNORECASE)
_TRAEFIK_KEY: Final = re.compile(r"\bIdempotency-Key[\"']?\s*[:=]\s*(\"\"|'')", re.IGNORECASE)
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


class _Line(NamedTuple):
    """A directive that does harm."""

    number: int
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
        yield from _file(name)


def _file(name: str) -> Iterator[Finding]:
    try:
        with Path(name).open("rb") as file:
            raw = file.read(PROXY_FILE_MAX_BYTES + 1)
    except OSError as error:
        yield RETRIES.warning(f"not checked: {error}", "name a file that can be read")
        return
    if len(raw) > PROXY_FILE_MAX_BYTES:
        yield RETRIES.warning(
            f"not checked: {name} has more than {PROXY_FILE_MAX_BYTES:,} bytes", "split the file"
        )
        return
    text = raw.decode("utf-8", "replace")
    retries, keys, caches = proxy_retries(text), _key_lines(text), _cache_lines(text)
    if not (retries or keys or caches or _KNOWN.search(text)):
        yield RETRIES.info(
            f"not checked: {name} has nothing of nginx, HAProxy, Envoy, Istio or Traefik",
            "name the file that has the routes or the upstreams",
        )
        return
    if retries:
        yield RETRIES.warning(f"a POST can be sent again: {_shown(name, retries)}")
    else:
        yield RETRIES.ok(f"{name} retries no POST that may have reached the app")
    if keys:
        yield KEYS.broken(f"the key does not arrive as it was sent: {_shown(name, keys)}")
    else:
        yield KEYS.ok(f"{name} does not touch the key")
    if caches:
        yield CACHE.broken(f"a POST can be answered from a cache: {_shown(name, caches)}")
    else:
        yield CACHE.ok(f"{name} caches no POST")


def _shown(name: str, lines: list[_Line]) -> str:
    return ", ".join(f"{name}:{line.number}: {line.text}" for line in lines)


def _lines(text: str) -> list[str]:
    return [_COMMENT.sub("", line) for line in text.splitlines()]


def _found(text: str, is_harmful: Callable[[str], object]) -> list[_Line]:
    numbered = enumerate(_lines(text), 1)
    return [_Line(number, line.strip()) for number, line in numbered if is_harmful(line)]


def _key_lines(text: str) -> list[_Line]:
    """The lines of a configuration that remove or change the key."""
    return _found(text, _changes_key)


def _changes_key(line: str) -> bool:
    set_by_nginx, set_by_haproxy = _NGINX_KEY.search(line), _HAPROXY_KEY.search(line)
    return bool(
        (set_by_nginx is not None and _NGINX_KEEPS not in set_by_nginx[1].lower())
        or (set_by_haproxy is not None and not _HAPROXY_KEEPS.search(set_by_haproxy[1]))
        or _NGINX_NO_HEADERS.search(line)
        or _ENVOY_KEY.search(line)
        or _TRAEFIK_KEY.search(line)
    )


def _cache_lines(text: str) -> list[_Line]:
    """The lines of a configuration that answer a POST from a cache."""
    return _found(text, _caches_posts)


def _caches_posts(line: str) -> bool:
    directive = _NGINX_CACHE.search(line)
    return directive is not None and "POST" in directive[1].upper().split()


def proxy_retries(text: str) -> list[_Line]:
    """The lines of a configuration that send a POST again."""
    found = _found(
        text,
        lambda line: _is_unsafe_nginx(line) or _is_unsafe_envoy(line) or _TRAEFIK.search(line),
    )
    return sorted([*found, *_haproxy_retries(_lines(text))])


def _is_unsafe_nginx(line: str) -> bool:
    directive = _NGINX.search(line)
    return directive is not None and "non_idempotent" in directive[2].split()


def _is_unsafe_envoy(line: str) -> bool:
    policy = _ENVOY.search(line)
    if policy is None:
        return False
    conditions = {condition.strip() for condition in policy[1].split(",")}
    return bool(conditions - _ENVOY_SAFE - {""})


def _haproxy_retries(lines: list[str]) -> Iterator[_Line]:
    """Retries in sections that do not spare any request from them. What stands in `defaults` holds
    for all later sections, so it is spared only by a rule of its own section."""
    retries: list[_Line] = []
    is_spared = False
    for number, line in enumerate([*lines, "global"], 1):
        if _HAPROXY_SECTION.match(line):
            if not is_spared:
                yield from retries
            retries, is_spared = [], False
        elif _HAPROXY_SPARED.match(line):
            is_spared = True
        elif (directive := _HAPROXY.match(line)) and set(directive[1].split()) - _HAPROXY_SAFE:
            retries.append(_Line(number, line.strip()))
