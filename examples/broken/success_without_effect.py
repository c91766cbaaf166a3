"""Success without effect: the success is stored and sent before the commit, which then fails.

What is wrong: the guard stores what the handler returned, and the transaction with the payment is
committed further outside, when the response is there already. If that commit fails, the payment is
rolled back, and the stored success stays.
Where it comes from: a middleware or a teardown function that commits the session "at the end of the
request", around a guard that is a decorator of the handler.
What it costs: the customer has a receipt, every retry confirms it, and nobody was ever paid.
How the verifier shows it: it sends a request that fails, and retries it: the answers are successes,
and the effect counter says 0.
"""

from __future__ import annotations

from typing import ClassVar

from examples.broken.guard import Guard


class SuccessWithoutEffect(Guard):
    is_inside_the_transaction: ClassVar[bool] = True
