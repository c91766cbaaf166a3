"""Reads and checks the setting ONCEKEY.

    once         an Once, the dotted path of one (or of a function that makes one), or a store's URL
    caller       a function of the request that returns the verified principal or None, or its
                 dotted path
    rules        for the middleware: Rule objects, or dicts of their options; None if views are
                 decorated and the middleware only reports keys of unguarded requests
    transaction  for the middleware: True, or the alias of the database that the keys are in
    unserved     "allow" if a decorated view may be served by no URL pattern of any URLconf; by
                 default the first request fails then
    render_refusal  a function that gives a Refusal the shape of the app's own errors, or its path
    unguarded    for the middleware, about a request that has a key but no guard: "warn" (the
                 default) adds a header to the response and a line to the log, "refuse" responds
                 with 400
    operation, policy_url, challenge, replay_header and close: see IdempotencyWSGI

The middleware serves the built-in policy page. A project that only decorates views adds
`path("idempotency-policy", policy_page)` to its URLs and gives its address as policy_url.

Knows no request.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from oncekey.core.errors import ConfigurationError
from oncekey.engine.once import Once
from oncekey.http.exchange import POLICY_URL_DEFAULT, Exchange, check_caller
from oncekey.http.rules import Rule, Rules, rule_from_options
from oncekey.http.wsgi.request_guard import RequestGuard, close_at_exit

SETTING: Final = "ONCEKEY"
_NAMES: Final = (
    "once", "caller", "rules", "transaction", "operation", "policy_url", "challenge",
    "replay_header", "render_refusal", "close", "unserved", "unguarded",
)  # fmt: skip
_lock = threading.Lock()


class DjangoSettings:
    """The checked setting, with the guard that is made of it."""

    def __init__(self, setting: Mapping[str, Any]) -> None:
        if not isinstance(setting, Mapping) or set(setting) - set(_NAMES):
            raise ConfigurationError(f"{SETTING} must be a dict of {', '.join(sorted(_NAMES))}")
        if setting.get("caller") is None:
            raise ConfigurationError(
                f'{SETTING}["caller"] is missing: a function of the request that gives the '
                "verified principal, such as its user's primary key as text, or None to refuse"
            )
        self.caller: Callable[[Any], str | None] = _imported(setting["caller"])
        check_caller(self.caller)
        self.alias = database_alias(setting.get("transaction", False))
        self.has_rules = setting.get("rules", ()) is not None
        rules = tuple(map(_rule, setting.get("rules") or ()))
        for rule in rules:
            check_transaction(rule, self.alias)
        if setting.get("once") is None:
            raise ConfigurationError(f'{SETTING}["once"] is missing: an Once, or a store\'s URL')
        once = _engine(setting["once"])
        more = ("operation", "policy_url", "challenge", "replay_header")
        options = {name: setting[name] for name in more if name in setting}
        render = _imported(setting.get("render_refusal"))
        exchange = Exchange(Rules(rules), render_refusal=render, **options)
        self.guard = RequestGuard(once, exchange, setting.get("unguarded", "warn"))
        self._serves_page = "policy_url" not in setting
        if setting.get("close", True):
            close_at_exit(once)

    def serve_page(self) -> None:
        """Have refusals link to the page that the middleware serves, unless policy_url is set."""
        if self._serves_page:
            self.guard.exchange.policy_url = POLICY_URL_DEFAULT


def django_settings() -> DjangoSettings:
    """The settings of this process. The first call makes its engine."""
    with _lock:
        return _cached_settings()


@functools.cache
def _cached_settings() -> DjangoSettings:
    return DjangoSettings(getattr(settings, SETTING, {}))


def _changed(*, setting: str, **_: Any) -> None:
    """Read the setting again after `override_settings`."""
    if setting == SETTING:
        _cached_settings.cache_clear()


setting_changed.connect(_changed)


def database_alias(transaction: object) -> str | None:
    """The alias of the database whose transaction is used; None for no transaction."""
    if transaction is True:
        return "default"
    if transaction in (False, None):
        return None
    if not isinstance(transaction, str):
        raise ConfigurationError("transaction must be True, False or the alias of a database")
    return transaction


def check_transaction(rule: Rule, alias: str | None) -> None:
    """Raise ConfigurationError for retry_safe=False: in a transaction a failure leaves nothing."""
    if alias is not None and rule.retry_safe is False:
        raise ConfigurationError("retry_safe=False makes no sense in a transaction: leave it out")


def _engine(value: object) -> Once:
    """An engine from one, a function that makes one, the path of either, or a store's URL."""
    if isinstance(value, str):
        value = Once(value) if "://" in value else _imported(value)
    if callable(value) and not isinstance(value, Once):
        value = value()
    if not isinstance(value, Once):
        raise ConfigurationError(f'{SETTING}["once"] gave a {type(value).__name__}, not an Once')
    return value


def _imported(value: Any) -> Any:
    return import_string(value) if isinstance(value, str) else value


def _rule(value: Rule | Mapping[str, Any]) -> Rule:
    return value if isinstance(value, Rule) else rule_from_options(value)
