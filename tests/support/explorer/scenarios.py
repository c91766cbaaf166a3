"""The scenarios that are explored on every change, and those that take long.

Each goes deep in one thing, since everything at once has too many states. Together they must meet
every kind of action in MUST_MEET, or they would prove nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.support.explorer.scenario import OTHER, Actor, BodyEnding, Scenario

_EVERY_ENDING: Final = tuple(BodyEnding)
_ENDINGS: Final = (BodyEnding.RETURNED, BodyEnding.RAISED, BodyEnding.NOT_STARTED)

# Of the recovery of a key that its owner has left.
_CRASHING: Final = Actor(
    "A", lease=1, keep=3, endings=(BodyEnding.RETURNED, BodyEnding.INTERRUPTED)
)
_RECOVERING: Final = Actor("B", lease=1, keep=3, recoverable=True)
_QUICK: Final = Actor("C", lease=1, keep=3, recoverable=True, quick=True)

SCENARIOS: Final = (
    Scenario(
        "at most once, three attempts",
        (
            Actor("A", lease=1, keep=1),
            Actor("B", lease=1, keep=1),
            Actor("C", lease=1, keep=1),
        ),
        ticks=1,
        crashes=1,
    ),
    Scenario(
        "fenced, three attempts",
        (
            Actor("A", retry_safe=True, lease=1, keep=1),
            Actor("B", retry_safe=True, lease=1, keep=1, quick=True),
            Actor("C", retry_safe=True, lease=1, keep=1, quick=True),
        ),
        ticks=2,
        crashes=1,
    ),
    Scenario(
        "at most once, heartbeat",
        (Actor("A", beats=2), Actor("B", quick=True), Actor("C", quick=True)),
        ticks=4,
    ),
    Scenario(
        "fenced, heartbeat",
        (
            Actor("A", retry_safe=True, beats=1),
            Actor("B", retry_safe=True, beats=1, quick=True),
            Actor("C", retry_safe=True, quick=True),
        ),
        ticks=3,
    ),
    Scenario(
        "at most once, lost and late",
        (Actor("A", beats=1), Actor("B", quick=True), Actor("C", quick=True)),
        ticks=2,
        losses=2,
    ),
    Scenario(
        "fenced, lost and late",
        (
            Actor("A", retry_safe=True, beats=1),
            Actor("B", retry_safe=True, quick=True),
            Actor("C", retry_safe=True, quick=True),
        ),
        ticks=2,
        losses=1,
    ),
    Scenario(
        "outage: no claim is answered",
        (
            Actor("A", lease=1, keep=1),
            Actor("B", lease=1, keep=1, quick=True, endings=_ENDINGS),
        ),
        ticks=2,
        losses=4,
    ),
    Scenario(
        "another request under the same key",
        (
            Actor("A", retry_safe=True, endings=_ENDINGS),
            Actor("B", retry_safe=True, fingerprint=OTHER, lease=1),
            Actor("C", fingerprint=OTHER, quick=True),
        ),
        ticks=2,
    ),
    Scenario(
        "generations: expiry and sweep",
        (
            Actor("A", lease=1, keep=1, audit=1, keep_unknown=1),
            Actor("B", lease=1, keep=1, audit=0, keep_unknown=1, quick=True),
            Actor("C", lease=1, keep=1, audit=0, keep_unknown=1, quick=True, fingerprint=OTHER),
        ),
        ticks=3,
    ),
    Scenario(
        "the clock is set back after a sweep",
        (
            Actor("A", lease=1, keep=1, audit=0, keep_unknown=1, quick=True),
            Actor("B", lease=1, keep=1, audit=0, keep_unknown=1, quick=True),
            Actor("C", retry_safe=True, lease=1, keep=1, audit=0, quick=True),
        ),
        ticks=2,
        set_backs=1,
    ),
    Scenario(
        "undecided for longer than keep",
        (
            Actor("A", lease=1, keep=1, audit=0),
            Actor("B", lease=1, keep=1, audit=0, quick=True),
            Actor("C", retry_safe=True, lease=1, keep=1, audit=0, quick=True),
        ),
        ticks=3,
    ),
    Scenario(
        "at most once, every ending",
        (
            Actor("A", endings=_EVERY_ENDING),
            Actor("B", endings=_EVERY_ENDING),
            Actor("C", quick=True),
        ),
        ticks=2,
    ),
    Scenario(
        "fenced, every ending",
        (
            Actor("A", retry_safe=True, endings=_EVERY_ENDING, lease=1),
            Actor("B", retry_safe=True, endings=_ENDINGS, quick=True),
            Actor("C", retry_safe=True, quick=True),
        ),
        ticks=1,
        losses=1,
    ),
    Scenario("recovery", (_CRASHING, replace(_RECOVERING, quick=True), _QUICK), ticks=2),
    Scenario("slow recovery", (replace(_CRASHING, quick=True), _RECOVERING, _QUICK), ticks=2),
    Scenario(
        "an operator and a late owner",
        (
            Actor("A", lease=1, keep=3, beats=1),
            Actor("O", operator=True),
            Actor("B", lease=1, keep=3, quick=True),
        ),
        ticks=2,
        crashes=1,
    ),
    Scenario(
        "an operator and a recovery",
        (
            Actor("A", lease=1, keep=3, quick=True),
            Actor("O", operator=True),
            Actor("B", lease=1, keep=3, recoverable=True),
        ),
        ticks=2,
    ),
    Scenario(
        "two operators and a takeover",
        (
            Actor("A", retry_safe=True, lease=1, keep=3, quick=True),
            Actor("O", operator=True),
            Actor("P", operator=True, quick=True),
            Actor("B", lease=1, keep=3, quick=True),
            Actor("C", retry_safe=True, lease=1, keep=3, quick=True),
        ),
        ticks=1,
    ),
    Scenario(
        "waiting for the other",
        (
            Actor("A", endings=_ENDINGS, quick=True),
            Actor("B", wait=2),
            Actor("C", wait=1, quick=True),
        ),
        ticks=2,
    ),
    Scenario(
        "retry-safe and not, mixed",
        (
            Actor("A", retry_safe=True, lease=1, keep=2),
            Actor("B", retry_safe=False, lease=1, keep=2),
            Actor("C", retry_safe=True, lease=1, keep=2, quick=True),
        ),
        ticks=2,
        crashes=1,
    ),
    Scenario(
        "four attempts",
        (
            Actor("A", retry_safe=True, beats=1, quick=True),
            Actor("B", retry_safe=True, lease=1, quick=True),
            Actor("C", retry_safe=True, lease=1, quick=True),
            Actor("D", retry_safe=True, quick=True),
        ),
        ticks=2,
        crashes=1,
    ),
)

# `make soak` gives some of them more time, or makes quick attempts slow: millions of states.
_WIDER: Final = {
    "at most once, three attempts": {"ticks": 2},
    "fenced, lost and late": {"ticks": 3},
    "another request under the same key": {"ticks": 3},
    "generations: expiry and sweep": {"ticks": 4},
    "undecided for longer than keep": {"ticks": 4},
    "four attempts": {"ticks": 3},
}
_SLOWER: Final = {"fenced, three attempts": "B"}


def _wider(scenario: Scenario) -> Scenario:
    slow = _SLOWER.get(scenario.name, "")
    actors = tuple(replace(a, quick=a.quick and a.name != slow) for a in scenario.actors)
    bounds = _WIDER.get(scenario.name, {})
    return replace(scenario, name=f"{scenario.name}, wider", actors=actors, **bounds)


LONG_SCENARIOS: Final = (
    *(_wider(each) for each in SCENARIOS if each.name in _WIDER.keys() | _SLOWER.keys()),
    Scenario("recovery, both slow", (_CRASHING, _RECOVERING, _QUICK), ticks=2),
)

MUST_MEET: Final = frozenset(
    {
        "claim", "claim again", "claim of a freed key", "expiry", "takeover", "give-up", "unknown",
        "replay", "mismatch", "in flight", "renew", "renew refused", "finish",
        "finish again", "finish refused", "finish of an unknown key", "release", "release again",
        "release refused", "resolve", "resolve refused", "look", "late", "late: claim",
        "late: straggler", "late: renew", "late: finish",
        "late: release", "lost ack", "crash", "sweep", "effect", "recover", "heartbeat ends",
        "overtaken", "late start", "tick", "set back",
        *(f"body {ending.value}" for ending in BodyEnding),
        "outcome finished", "outcome released", "outcome replayed", "outcome mismatch",
        "outcome in_flight", "outcome wait_timeout", "outcome unknown", "outcome lost",
        "outcome unavailable",
    }
)  # fmt: skip
