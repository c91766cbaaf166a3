"""Unscoped: all callers share one space of keys.

What is wrong: the primary key is the client's key alone, and clients choose keys as they like.
Where it comes from: "CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key)", in three of four guides.
What it costs: two customers whose clients count from order-1 get each other's receipts, and the
second one's payment is never made. Who guesses keys reads other people's responses.
How the verifier shows it: it sends the same request with the same key under two tokens: the second
caller gets the first one's response, and there is one effect where two are due.
"""

from __future__ import annotations

from examples.broken.guard import Guard


class Unscoped(Guard):
    def scope(self, account: str) -> str:
        return "everybody"
