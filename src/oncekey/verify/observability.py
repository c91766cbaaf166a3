"""What must be known of an API for a guarantee to be observable, and the option that tells it.

A probe decides for itself, by what it meets; this is what can be said before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from oncekey.verify.effect_counters import UrlCounter
from oncekey.verify.raw_connection import Origin
from oncekey.verify.target import Target, Variant
from oncekey.verify.verdict import Guarantee, Status, Verdict


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a user can tell.

    missing   what is not there, for a sentence
    advice    how to give it
    """

    missing: str
    advice: str
    is_met: Callable[[Target], bool]


def _variant(kind: Variant, what: str) -> Need:
    return Need(
        missing=f"there is no request {what}",
        advice=f"give one: --variant {kind}=BODY, or [variants.{kind}]",
        is_met=lambda target: kind in target.variants,
    )


SLOW = _variant(Variant.SLOW, "whose handler takes seconds")
NEEDS: Mapping[Guarantee, Need] = {
    Guarantee.SLOW_HANDLER: SLOW,
    Guarantee.OTHER_BODY_DURING: SLOW,
    Guarantee.OTHER_PATH: Need(
        missing="there is no request to another path",
        advice="give one: --variant other-path=/PATH, or [variants.other-path]",
        is_met=lambda target: Variant.OTHER_PATH in target.variants,
    ),
    Guarantee.OTHER_CALLER: Need(
        missing="there is no second caller",
        advice="give one: --other-caller HEADER, or [callers.other]",
        is_met=lambda target: target.other_caller is not None,
    ),
    Guarantee.BAD_CREDENTIALS: Need(
        missing="there is no caller",
        advice="give one: --caller HEADER, or [callers.main]",
        is_met=lambda target: target.bad_caller is not None,
    ),
    Guarantee.CLIENT_ERRORS: _variant(Variant.REJECTED, "that the API refuses with a 4xx"),
    Guarantee.SERVER_ERRORS: _variant(Variant.FAILING, "that fails with a 5xx"),
    Guarantee.NO_CONTENT: _variant(Variant.NO_CONTENT, "that is answered with 204"),
    Guarantee.LARGE_RESPONSE: _variant(Variant.LARGE, "whose response is large"),
    Guarantee.EXPIRY: Need(
        missing="it is not known how long keys are remembered, or it is too long to wait for",
        advice="give it if it is short: --keep 10s, or keep",
        is_met=lambda target: target.keep_seconds is not None,
    ),
}


def far_counter(target: Target) -> Origin | None:
    """Return where effects are counted, if that is another machine than this one."""
    counter = target.effects
    if isinstance(counter, UrlCounter) and not counter.origin.is_loopback:
        return counter.origin
    return None


def how_to_observe(verdict: Verdict, target: Target) -> str:
    """Return the probe's advice, with the option that follows it if one is missing."""
    need = missing_for(verdict.guarantee, target)
    if verdict.status is not Status.NOT_OBSERVABLE or need is None or "--" in verdict.advice:
        return verdict.advice
    option = f"{need.advice[0].upper()}{need.advice[1:]}."
    return f"{verdict.advice} {option}".strip()


def missing_for(guarantee: Guarantee, target: Target) -> Need | None:
    """Return what the guarantee needs and the target lacks, if so."""
    need = NEEDS.get(guarantee)
    return None if need is None or need.is_met(target) else need
