"""The test cards: each makes the provider behave in its own way.

Owns their names and times. What they do is in provider/provider_app.py.
"""

from __future__ import annotations

import enum


class Card(enum.StrEnum):
    """`card` of a charge."""

    OK = "card_ok"
    SLOW = "card_slow"
    FLAKY = "card_flaky"
    DECLINED = "card_declined"
    STUCK = "card_stuck"


#: How long the provider takes to answer, once it has acted.
USUAL_SECONDS = 0.15
SLOW_SECONDS = 2.0
#: How much longer it takes at most if a scenario wants something to happen first.
HELD_MAX_SECONDS = 15.0
#: A stuck provider has acted, and does not answer for this long; asked for the same order again,
#: it answers at once.
STUCK_SECONDS = 40.0
#: How long the API waits for the provider before it answers its own client with an error.
PROVIDER_TIMEOUT_SECONDS = 20.0
