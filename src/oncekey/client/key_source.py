"""Where the key of a request comes from, and whether the request may be sent with it.

    1. the caller's own header
    2. a key or an intent that the caller gave along with the request
    3. the child key of the running step
    4. in an attempt but outside of its steps: a new key, refused if the attempt may run again
    5. the journal: the key of an entry that an earlier request left open, or a new one
    6. a new random key

This module owns that order and its refusals. It writes nothing: an entry of the journal is only
prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from oncekey.client.client_settings import Settings
from oncekey.client.errors import NotSent
from oncekey.client.request_identity import RequestIdentity, key_header_value
from oncekey.core.identity import check_text
from oncekey.engine.attempts.attempt_base import current_attempt, current_step
from oncekey.engine.attempts.attempt_steps import RunningStep
from oncekey.engine.new_key import new_key

if TYPE_CHECKING:
    from oncekey.client.journal import EntryHandle

INTENT_MAX_CHARS: Final = 255


class KeyChoice(NamedTuple):
    """A key, and what is known of it.

    `used`: the key may have been sent before. `in_header`: the caller put it into the request's
    header. `entry`: the journal has, or gets, an entry for it, and may bring another key.
    """

    key: str
    used: bool
    in_header: bool = False
    entry: EntryHandle | None = None


def choose_key(
    settings: Settings, identity: RequestIdentity, header: str | None, given: object
) -> KeyChoice:
    """Choose the key for a request. `header` is the key in its header; `given` is what the caller
    gave along with it, {"key": ...} or {"intent": ...}. Raises NotSent if no key would be safe."""
    step = current_step()
    if header is not None:
        return _callers_key(settings, identity, step, header, in_header=True)
    key, intent = _read_given(given)
    if key is not None:
        return _callers_key(settings, identity, step, key, in_header=False)
    if intent is not None:
        if settings.journal is None:
            raise NotSent(
                f"the intent {intent!r} has nowhere to be written down: give the client a "
                "journal=, or the request a key. Nothing was sent"
            )
        return _new_journal_key(settings, identity, intent)
    if step is not None:
        return KeyChoice(_step_key(step, identity), used=True)
    attempt = current_attempt()
    if attempt is None and settings.journal is not None:
        return _new_journal_key(settings, identity, None)
    if attempt is not None and attempt.retry_safe:
        raise NotSent(
            f"{identity.method} {identity.display_url} is sent by a body that is run again where "
            f"it fails ({attempt.operation!r} is retry_safe), but outside of its steps: a re-run "
            "would send it under another key, and it could be carried out twice. Send it in "
            "attempt.step(...), or give it a key of its own. Nothing was sent"
        )
    return KeyChoice(new_key(namespace=settings.namespace), used=False)


def _callers_key(
    settings: Settings,
    identity: RequestIdentity,
    step: RunningStep | None,
    key: str,
    *,
    in_header: bool,
) -> KeyChoice:
    """A key that the caller gave. The journal may have it open from a request that was given up:
    then this request's response closes its entry."""
    if step is not None and step.key == key:
        # The step has no key left for another request. Whether this one may be sent is the
        # caller's decision: a redirect sends it elsewhere.
        step.admits(identity.digest)
    entry = None
    if settings.journal is not None:
        entry = settings.journal.entry_for(
            key, identity.digest, account=identity.account, callers_key=True
        )
    return KeyChoice(key, used=True, in_header=in_header, entry=entry)


def _new_journal_key(
    settings: Settings, identity: RequestIdentity, intent: str | None
) -> KeyChoice:
    assert settings.journal is not None
    key = new_key(namespace=settings.namespace)
    entry = settings.journal.entry_for(
        key, identity.digest, account=identity.account, intent=intent
    )
    return KeyChoice(key, used=False, entry=entry)


def _step_key(step: RunningStep, identity: RequestIdentity) -> str:
    if not step.admits(identity.digest):
        raise NotSent(
            f"{identity.method} {identity.display_url} is not the first request of step "
            f"{step.name!r}, whose key went with another one: one key for two requests would be "
            "refused, or answered with the other's answer. Give this request a step of its own, "
            "or a key of its own. Nothing was sent"
        )
    return step.key


def _read_given(given: object) -> tuple[str | None, str | None]:
    """The key or the intent that came along with a request."""
    if given is None:
        return None, None
    if not isinstance(given, Mapping) or len(given) != 1 or not given.keys() <= {"key", "intent"}:
        raise NotSent(
            'what is given for "oncekey" with a request must be {"key": "..."} or '
            '{"intent": "..."}. Nothing was sent'
        )
    if "key" in given:
        key_header_value(given["key"], quoted=True)
        return given["key"], None
    check_text("intent", given["intent"], 1, INTENT_MAX_CHARS)
    return None, given["intent"]
