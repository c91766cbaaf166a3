"""Tells operators of messages that need somebody: dead letters, and those that are parked.

Each is a line of the log, with the reason, and an event for metrics and structured logs. All other
dispositions follow from an event that the engine has made already: see docs/reference/metrics.md.
"""

from __future__ import annotations

import logging
from typing import Final

from oncekey.core.events import Event, EventKind
from oncekey.engine.once_base import OnceBase
from oncekey.engine.port import AnyPort
from oncekey.queues.consumer_settings import ConsumerPlan
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.queue_message import Message

EVENTS: Final = {Kind.DEAD_LETTER: EventKind.DEAD_LETTER, Kind.PARK: EventKind.PARKED}
# The text of the lines, by which a command that shows dispositions itself can leave them out.
LINE: Final = "consumer %s: message %s of %s: %s: %s"
_log = logging.getLogger("oncekey")


def report(once: OnceBase, plan: ConsumerPlan, message: Message, disposition: Disposition) -> None:
    """Tell of a disposition, if it is one that needs somebody."""
    kind = EVENTS.get(disposition.kind)
    if kind is None:
        return
    settings, letter = plan.settings, disposition.dead_letter
    _log.warning(
        LINE,
        settings.name,
        message.delivery_id or "without an id",
        message.queue,
        disposition.kind,
        disposition.reason,
    )
    once.notify(
        Event(
            kind,
            settings.name,
            plan.scope,
            _tag_of(once, plan, message),
            letter.fence if letter is not None else 0,
            letter.tries if letter is not None else 0,
            surface=plan.origin.surface,
            route=plan.origin.route,
        )
    )


def _tag_of(once: OnceBase, plan: ConsumerPlan, message: Message) -> str:
    """The tag of the message's key; "" if it has none that can be used."""
    try:
        key = plan.key_of(message)
        return AnyPort(once).tag(plan.settings.name, key, plan.scope)
    except Exception:  # it has no key, or the user's own function fails: the reason says so
        return ""
