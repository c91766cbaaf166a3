"""Checks of proxies in front of an app: whether they send a POST again by themselves, change its
key, or answer it from a cache.

They read configuration files that the user names (see proxy_directives.py), and know the directives
of nginx, HAProxy, Envoy (with Istio) and Traefik. They do not follow includes, and do not know
which section serves which route: a finding names the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from oncekey.doctor.proxy_directives import (
    NGINX_REST,
    Directive,
    blocks,
    joined_lines,
    matches,
    without_comments,
)
from oncekey.stores.inspection import Check, Finding

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

_FLAGS: Final = re.IGNORECASE
_KEY: Final = r"(?<![\w-])Idempotency-Key(?![\w-])"
_HAS_KEY: Final = re.compile(_KEY, _FLAGS)
_NGINX: Final = re.compile(rf"\b\w+_next_upstream\s+{NGINX_REST}")
_NGINX_KEY: Final = re.compile(
    r"\b\w+_(?:set_header|param)\s+[\"']?(?:HTTP_)?Idempotency[-_]Key[\"']?\s+" + NGINX_REST, _FLAGS
)
_NGINX_KEEPS: Final = re.compile(r"\$\{?http_idempotency_key\b", _FLAGS)
_NGINX_DROPS: Final = re.compile(
    # The second and third are of the module headers-more, and take several names.
    rf"\b\w+_pass_request_headers\s+off\b|\bmore_(?:clear|set)_input_headers\s[^;{{}}]*?{_KEY}",
    _FLAGS,
)
_NGINX_CACHE: Final = re.compile(rf"\b\w+_cache_methods\s+{NGINX_REST}")
_HAPROXY_KEY: Final = re.compile(
    rf"^\s*http-request\s+(?:del-header|set-header|replace-header)\s+[\"']?{_KEY}[\"']?(.*)", _FLAGS
)
_HAPROXY_KEEPS: Final = re.compile(r"hdr\(Idempotency-Key\b", _FLAGS)
_HAPROXY: Final = re.compile(r"^\s*retry-on\s+(.+)$")
_HAPROXY_SECTION: Final = re.compile(r"^(global|defaults|frontend|backend|listen)\b")
_HAPROXY_SPARED: Final = re.compile(r"^\s*http-request\s+disable-l7-retry\b")
_ENVOY_RETRIES: Final = "retry_on|retryOn"
_ENVOY_CONDITION: Final = re.compile(r"\w[\w-]*")
_ENVOY_KEYS: Final = "request_headers_to_remove|requestHeadersToRemove"
_TRAEFIK_KEY: Final = re.compile(rf"{_KEY}[\"']?\s*[:=]\s*(\"\"|'')", _FLAGS)
_TRAEFIK_KEYS: Final = "customRequestHeaders"
_TRAEFIK: Final = re.compile(r"\bretryNonIdempotentMethod[\"']?\s*[:=]\s*[\"']?true", _FLAGS)
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
    text = without_comments(raw.decode("utf-8", "replace"))
    retries, keys, caches = proxy_retries(text), _changed_keys(text), _cached_posts(text)
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


def _shown(name: str, found: list[Directive]) -> str:
    return ", ".join(f"{name}:{one.number}: {one.line}" for one in found)


def _changed_keys(text: str) -> list[Directive]:
    """The directives that remove or change the key."""
    set_by_nginx = (
        found for found, match in matches(_NGINX_KEY, text) if not _NGINX_KEEPS.search(match[1])
    )
    set_by_haproxy = (
        line
        for line in joined_lines(text)
        if (match := _HAPROXY_KEY.match(line.text)) and not _HAPROXY_KEEPS.search(match[1])
    )
    named = (
        block
        for block in blocks(f"{_ENVOY_KEYS}|{_TRAEFIK_KEYS}", text)
        if _HAS_KEY.search(block.text)
    )
    others = (found for rule in (_NGINX_DROPS, _TRAEFIK_KEY) for found, _ in matches(rule, text))
    return sorted({*set_by_nginx, *set_by_haproxy, *named, *others})


def _cached_posts(text: str) -> list[Directive]:
    """The directives that answer a POST from a cache."""
    return [
        found
        for found, match in matches(_NGINX_CACHE, text)
        if "POST" in match[1].upper().replace('"', " ").replace("'", " ").split()
    ]


def proxy_retries(text: str) -> list[Directive]:
    """The directives of a configuration without comments that send a POST again."""
    of_nginx = (
        found for found, match in matches(_NGINX, text) if "non_idempotent" in match[1].split()
    )
    of_envoy = (block for block in blocks(_ENVOY_RETRIES, text) if _is_unsafe_envoy(block))
    of_traefik = (found for found, _ in matches(_TRAEFIK, text))
    return sorted([*of_nginx, *of_envoy, *of_traefik, *_haproxy_retries(text)])


def _is_unsafe_envoy(block: Directive) -> bool:
    """Its conditions are a text with commas, on one line or several."""
    conditions = block.text.partition(":")[2]
    return not _ENVOY_SAFE.issuperset(_ENVOY_CONDITION.findall(conditions))


def _haproxy_retries(text: str) -> Iterator[Directive]:
    """Retries in sections that do not spare any request from them. What stands in `defaults` holds
    for all later sections, so it is spared only by a rule of its own section."""
    retries: list[Directive] = []
    is_spared = False
    for line in (*joined_lines(text), Directive(0, "global")):
        if _HAPROXY_SECTION.match(line.text):
            if not is_spared:
                yield from retries
            retries, is_spared = [], False
        elif _HAPROXY_SPARED.match(line.text):
            is_spared = True
        elif (match := _HAPROXY.match(line.text)) and set(match[1].split()) - _HAPROXY_SAFE:
            retries.append(line)
