"""Where the key of a request comes from, and whether it may be sent with it.

    1. the caller's own header
    2. a key or an intent that was given along with the request
    3. the child key of the step that is running
    4. in an attempt but in none of its steps: a new one, refused if the attempt may run again
    5. the journal's: that of an entry left open by an earlier request, or a new one
    6. a new random one

Owns that order and its refusals. Reads the running step from its context; writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from oncekey.client.errors import NotSent
from oncekey.client.request_identity import Asked, field_of
from oncekey.core.identity import check_text
from oncekey.engine.attempt_steps import RunningStep
from oncekey.engine.context import current_attempt, current_step
from oncekey.engine.new_key import new_key

INTENT_MAX_CHARS: Final = 255


class Chosen(NamedTuple):
    """A key and what is known of it. `used`: others may have sent it before. `own`: the caller has
    given it, `in_header`: by putting it there. `journaled`: the journal may have an entry of it, or
    has a say in which key it is."""

    key: str
    used: bool
    own: bool = False
    in_header: bool = False
    journaled: bool = False
    intent: str | None = None


def choose(
    asked: Asked,
    header: str | None,
    given: object,
    *,
    namespace: str | None,
    has_journal: bool,
) -> Chosen:
    """The key for a request. `header` is the key in its header, `given` what came along with it:
    {"key": ...} or {"intent": ...}. Raises NotSent where no key would be safe."""
    step = current_step()
    if header is not None:
        _note(step, header, asked)
        return Chosen(header, used=True, own=True, in_header=True, journaled=has_journal)
    key, intent = _read(given)
    if key is not None:
        _note(step, key, asked)
        # The journal may have it open from a request that was given up: then this one's answer
        # is what it waits for.
        return Chosen(key, used=True, own=True, journaled=has_journal)
    if intent is not None:
        if not has_journal:
            raise NotSent(
                f"the intent {intent!r} has nowhere to be written down: give the client a "
                "journal=, or the request a key. Nothing was sent"
            )
        return Chosen(new_key(namespace=namespace), used=False, journaled=True, intent=intent)
    if step is not None:
        return Chosen(_of_step(step, asked), used=True)
    attempt = current_attempt()
    if attempt is not None and attempt.retry_safe:
        raise NotSent(
            f"{asked.method} {asked.shown} is sent by a body that is run again where it fails "
            f"({attempt.operation!r} is retry_safe), but outside of its steps: a re-run would send "
            "it under another key, and it could be carried out twice. Send it in "
            "attempt.step(...), or give it a key of its own. Nothing was sent"
        )
    journaled = has_journal and attempt is None
    return Chosen(new_key(namespace=namespace), used=False, journaled=journaled)


def _of_step(step: RunningStep, asked: Asked) -> str:
    if not step.admits(asked.digest):
        raise NotSent(
            f"{asked.method} {asked.shown} is not the first request of step {step.name!r}, whose "
            "key went with another one: one key for two requests would be refused, or answered "
            "with the other's answer. Give this request a step of its own, or a key of its own. "
            "Nothing was sent"
        )
    return step.key


def _note(step: RunningStep | None, key: str, asked: Asked) -> None:
    """The caller has sent the step's key itself: then the step has no key left for another
    request. Whether this one may go is the caller's word (a redirect goes elsewhere with it)."""
    if step is not None and step.key == key:
        step.admits(asked.digest)


def _read(given: object) -> tuple[str | None, str | None]:
    if given is None:
        return None, None
    if not isinstance(given, Mapping) or len(given) != 1 or not given.keys() <= {"key", "intent"}:
        raise NotSent(
            'what is given for "oncekey" with a request must be {"key": "..."} or '
            '{"intent": "..."}. Nothing was sent'
        )
    if "key" in given:
        field_of(given["key"], quoted=True)
        return given["key"], None
    check_text("intent", given["intent"], 1, INTENT_MAX_CHARS)
    return None, given["intent"]
