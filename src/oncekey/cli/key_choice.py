"""Which key a command is about, and how that key is found.

By OPERATION and KEY, by the tag that logs show, or by the client's key alone. The store is the
first word if it has `://` in it, or if there is a word more than needed; otherwise it is the
environment's. Owns these options, and the sentence that says what was tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any, NamedTuple

import click

from oncekey import ConfigurationError, KeyStatus, StoreUnavailable
from oncekey.cli.command_input import STORE_ENV
from oncekey.cli.output import UsageProblem, utc
from oncekey.cli.store_access import has_records, open_store, secret_from
from oncekey.core.codec import JSON
from oncekey.core.commands import Look, Seen
from oncekey.core.identity import Identities
from oncekey.core.record import lines
from oncekey.core.store import Store
from oncekey.engine.keys.administration import find_key, run_plan
from oncekey.engine.keys.key_search import KeySearch, find_client_key, find_stored_key
from oncekey.engine.keys.key_status import status_of, time_of


class KeyChoice(NamedTuple):
    """Which key of which store: by tag, by operation and key, or by key alone."""

    url: str
    operation: str | None = None
    key: str | None = None
    scope: str | None = None
    tag: str | None = None
    secret_env: str | None = None


class FoundKeys(NamedTuple):
    """The keys that were found, and what was tried. `id` is that of the one key that was meant,
    whether it was found or not; None if that cannot be said."""

    keys: tuple[KeyStatus, ...]
    tried: str
    id: bytes | None = None


_OPTIONS = (
    click.argument("words", nargs=-1, metavar="[URL] [OPERATION KEY]"),
    click.option(
        "--tag", help="The key's name in logs, or its beginning, instead of OPERATION KEY."
    ),
    click.option(
        "--key",
        metavar="KEY",
        help="The client's key alone: every operation and scope that was seen lately is tried.",
    ),
    click.option("--scope", help="The caller the key belongs to, if the service has any."),
    click.option(
        "--secret-env",
        metavar="NAME",
        help="The environment variable that holds the store's secret, if it has one.",
    ),
)


def key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose a key; it gets them as `choice`."""

    @wraps(command)
    def with_choice(
        *,
        words: tuple[str, ...],
        tag: str | None,
        key: str | None,
        scope: str | None,
        secret_env: str | None,
        **others: Any,
    ) -> None:
        url, rest = _store_and_rest(words, needed=0 if tag is not None or key is not None else 2)
        _check(rest, tag, key, scope)
        operation, name = (rest[0], rest[1]) if rest else (None, key)
        command(choice=KeyChoice(url, operation, name, scope, tag, secret_env), **others)

    decorated: Callable[..., None] = with_choice
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _store_and_rest(words: tuple[str, ...], needed: int) -> tuple[str, tuple[str, ...]]:
    if words and ("://" in words[0] or len(words) == needed + 1):
        return words[0], words[1:]
    url = os.environ.get(STORE_ENV)
    if not url:
        raise click.UsageError(
            f"no store: give its URL before OPERATION and KEY, or set {STORE_ENV}", _context()
        )
    return url, words


def _check(rest: tuple[str, ...], tag: str | None, key: str | None, scope: str | None) -> None:
    ways = [bool(rest), tag is not None, key is not None]
    if sum(ways) != 1 or len(rest) not in (0, 2):
        raise click.UsageError("give OPERATION and KEY, or --tag, or --key", _context())
    if tag is not None and scope is not None:
        raise click.UsageError("--tag names one key; --scope goes with --key", _context())


def _context() -> click.Context:
    return click.get_current_context()


@contextmanager
def store_of(choice: KeyChoice) -> Iterator[Store | None]:
    """The store of the key; None if it has no records. An empty store may not be bound to its
    secret yet, and must not be to whatever we have."""
    if not has_records(choice.url):
        yield None
        return
    with closing(open_store(choice.url)) as store:
        yield store


def find_chosen(store: Store | None, choice: KeyChoice) -> FoundKeys:
    """The keys of this store that were meant."""
    if store is None:
        return FoundKeys((), "the store has no records")
    if choice.tag is not None:
        status = run_plan(store, find_key(choice.tag, JSON))
        return _one(status, "no key has this tag: it was freed or swept, or is of another store")
    assert choice.key is not None
    if choice.operation is None:
        return _find_client_key(store, choice, choice.key)
    identities = _bound(store, choice)
    identity = identities.identify(choice.scope or "", choice.operation, choice.key)
    (seen,) = store.apply([Look(identity.id)])
    if isinstance(seen, StoreUnavailable):
        raise seen
    assert isinstance(seen, Seen)
    tried = "never seen, freed, or swept (or another scope or operation)"
    if seen.record is not None and seen.record.note:
        tried = f"it was freed, and the next call runs it: {lines(seen.record.note)[-1]}"
    return _one(status_of(seen, JSON), tried)._replace(id=identity.id)


def _one(status: KeyStatus | None, tried: str) -> FoundKeys:
    if status is None:
        return FoundKeys((), tried)
    return FoundKeys((status,), tried, bytes.fromhex(status.id))


def _bound(store: Store, choice: KeyChoice) -> Identities:
    """What makes the ids of keys, after the store has accepted its secret."""
    identities = Identities(secret_from(choice.secret_env))
    try:
        store.bind(identities.check_value())
    except ConfigurationError as error:
        raise UsageProblem(f"{error} (see --secret-env)") from error
    return identities


def _find_client_key(store: Store, choice: KeyChoice, key: str) -> FoundKeys:
    try:
        identities = _bound(store, choice)
    except UsageProblem:
        # Raw keys, where they are stored, can be found without the secret.
        search = run_plan(store, find_stored_key(key, choice.scope))
        if not search.found:
            raise
    else:
        search = run_plan(store, find_client_key(identities, key, choice.scope))
    if len(search.found) == 1:
        return _one(search.found[0], _tried(search))
    return FoundKeys(search.found, _tried(search))


def _tried(search: KeySearch) -> str:
    back = "" if search.since is None else f", back to {utc(time_of(search.since))}"
    every = "all" if search.since is None else "the newest"
    return (
        f"tried {search.pairs:,} pairs of scope and operation, those of {every} "
        f"{search.looked_at:,} claims{back}, and the stored keys of the newest claims. With "
        "OPERATION, KEY and --scope a key is found however old it is"
    )


def the_one(found: FoundKeys) -> KeyStatus | None:
    """The key that was found, if any; raises UsageProblem if there are several."""
    if len(found.keys) > 1:
        tags = ", ".join(f"{one.tag} ({one.operation} of {one.scope!r})" for one in found.keys)
        raise UsageProblem(f"several keys: {tags}. Choose one of them by --tag")
    return found.keys[0] if found.keys else None
