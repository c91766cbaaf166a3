"""The setting ONCEKEY, read once and checked as a whole.

    once         an Once, the dotted path of one (or of a function that makes one), or a store's URL
    caller       a function of the request that gives the verified principal or None, or its path
    rules        for the middleware: Rule objects, or dicts of their options; None where views are
                 decorated and the middleware only watches for keys that nothing guards
    transaction  for the middleware: True, or the alias of the database the keys are in
    unserved     "allow" for decorated views that no URL pattern of any URLconf leads to; they
                 are an error at the first request otherwise
    render_refusal  a function that gives a Refusal the shape of the app's own errors, or its path
    unguarded    for the middleware, about a key on a request that nothing guards: "warn" (the
                 default) says so in the response and in the log, "refuse" answers 400
    operation, policy_url, challenge, replay_header and close: see IdempotencyWSGI

The built-in policy page is served by the middleware. Where only views are decorated, put
`path("idempotency-policy", policy_page)` into the URLs and give its address as policy_url.

Owns the meaning of these names. Knows no request.
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
from oncekey.engine.blocking.once import Once
from oncekey.http.exchange import POLICY_URL_DEFAULT, check_caller
from oncekey.http.rules import Rule, rule_from_options
from oncekey.http.sync_request import SyncGuard
from oncekey.http.wsgi import close_at_exit

SETTING: Final = "ONCEKEY"
_NAMES: Final = frozenset(
    {
        "once",
        "caller",
        "rules",
        "transaction",
        "operation",
        "policy_url",
        "challenge",
        "replay_header",
        "render_refusal",
        "close",
        "unserved",
        "unguarded",
    }
)
_lock = threading.Lock()


class DjangoSettings:
    """The setting, ready to be used."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping) or set(given) - _NAMES:
            raise ConfigurationError(f"{SETTING} must be a dict of {', '.join(sorted(_NAMES))}")
        if given.get("caller") is None:
            raise ConfigurationError(
                f'{SETTING}["caller"] is missing: a function of the request that gives the '
                "verified principal, such as its user's primary key as text, or None to refuse"
            )
        self.caller: Callable[[Any], str | None] = _found(given["caller"])
        check_caller(self.caller)
        self.alias = database_alias(given.get("transaction", False))
        self.guards_paths = given.get("rules", ()) is not None
        rules = tuple(map(_rule, given.get("rules") or ()))
        for rule in rules:
            check_transaction(rule, self.alias)
        if given.get("once") is None:
            raise ConfigurationError(f'{SETTING}["once"] is missing: an Once, or a store\'s URL')
        once = _engine(given["once"])
        more = ("operation", "policy_url", "challenge", "replay_header", "unguarded")
        options = {name: given[name] for name in more if name in given}
        render = _found(given.get("render_refusal"))
        self.guard = SyncGuard(once, rules=rules, render_refusal=render, **options)
        self._serves_page = "policy_url" not in given
        if given.get("close", True):
            close_at_exit(once)

    def serve_page(self) -> None:
        """The middleware is there: link to the page it serves, unless another is named."""
        if self._serves_page:
            self.guard.exchange.policy_url = POLICY_URL_DEFAULT


def django_settings() -> DjangoSettings:
    """What the settings say. One engine per process, whoever asks first."""
    with _lock:
        return _configured()


@functools.cache
def _configured() -> DjangoSettings:
    return DjangoSettings(getattr(settings, SETTING, {}))


def _changed(*, setting: str, **_: Any) -> None:
    """Tests override settings; each gets what it says."""
    if setting == SETTING:
        _configured.cache_clear()


setting_changed.connect(_changed)


def database_alias(transaction: object) -> str | None:
    """Of the database whose transaction is used; None for none."""
    if transaction is True:
        return "default"
    if transaction in (False, None):
        return None
    if not isinstance(transaction, str):
        raise ConfigurationError("transaction must be True, False or the alias of a database")
    return transaction


def check_transaction(rule: Rule, alias: str | None) -> None:
    """A transaction decides for itself what a failure leaves: nothing."""
    if alias is not None and rule.retry_safe is False:
        raise ConfigurationError("retry_safe=False makes no sense in a transaction: leave it out")


def _engine(given: object) -> Once:
    if isinstance(given, str):
        given = Once(given) if "://" in given else _found(given)
    if callable(given) and not isinstance(given, Once):
        given = given()
    if not isinstance(given, Once):
        raise ConfigurationError(f'{SETTING}["once"] gave a {type(given).__name__}, not an Once')
    return given


def _found(given: Any) -> Any:
    return import_string(given) if isinstance(given, str) else given


def _rule(given: Rule | Mapping[str, Any]) -> Rule:
    return given if isinstance(given, Rule) else rule_from_options(given)
