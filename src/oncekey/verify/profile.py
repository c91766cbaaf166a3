"""Profiles: what a specification or a service says about keys, as values the probes compare with.

ietf      draft-ietf-httpapi-idempotency-key-header-07
stripe    what the API of Stripe (v1) documents
oncekey   what oncekey itself promises, the strictest of them

Where a source says nothing, a profile demands nothing. The comments beside the values say where
each one comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oncekey.verify.verdict import Guarantee


@dataclass(frozen=True, slots=True)
class Profile:
    """Which answers a profile allows.

    in_flight           statuses for a duplicate whose first request is still running
    mismatch            statuses for another request under the same key
    missing_key         statuses for a request without a key; empty if a key is optional
    bad_key             statuses for a malformed key; empty if any 4xx refuses it well enough
    strict_key          True if a key in two lines or with other characters than ASCII is malformed
    replay_header       name and value of the header that marks a replay, if it has one
    replays_headers     True if a replay has the first response's headers, and not only its body
    exact_body          True if a replay has the first body's bytes; else it may tell in a member
                        of its JSON that it is a replay, or which request it answers
    quoted_equals_bare  True if "k" and k must be one key; False if only one form is expected
    mismatch_first      True if a mismatch must be told while the first request is still running
    keeps_server_errors True if a 5xx of the handler is stored and replayed, False if it may be
                        run again where nothing happened, None if nothing is said
    cookies             True if a replay may carry cookies
    key_max             the longest key that must be accepted; longer ones must be refused.
                        None if nothing is said: then a long key is refused, or it is one key
    leaves_out          guarantees that the profile does not give
    """

    name: str
    title: str
    in_flight: frozenset[int]
    mismatch: frozenset[int]
    missing_key: frozenset[int]
    bad_key: frozenset[int] = frozenset()
    strict_key: bool = True
    replay_header: tuple[str, str] | None = None
    replays_headers: bool = True
    exact_body: bool = False
    quoted_equals_bare: bool = False
    mismatch_first: bool = True
    keeps_server_errors: bool | None = None
    cookies: bool = False
    key_max: int | None = None
    leaves_out: frozenset[Guarantee] = field(default_factory=frozenset)


# Sections are those of draft-ietf-httpapi-idempotency-key-header-07 (October 2025).
IETF = Profile(
    name="ietf",
    title="IETF draft-07",
    # 2.7: a retry while the original request is being processed SHOULD get 409, ...
    in_flight=frozenset({409}),
    # ... a key that is used again with another payload 422, ...
    mismatch=frozenset({422}),
    # ... and a request without the key that its operation requires 400.
    missing_key=frozenset({400}),
    # 2.1: the value MUST be a String of RFC 8941: one item, ASCII. 5: the server should validate a
    # key before it processes the request. No status is named for that, and no length (2.2).
    strict_key=True,
    key_max=None,
    # 2.6: a retry gets the result of the completed operation, success or error. An error need not
    # be stored: 2.7 leaves 500 and its like to the documentation of the API.
    replays_headers=True,
    keeps_server_errors=None,
    # 2.6: a concurrent duplicate is one whose key and fingerprint have been seen. A request with
    # another fingerprint is none, so 409 is not meant for it.
    mismatch_first=True,
)
# What docs.stripe.com/api/idempotent_requests and docs.stripe.com/error-low-level say of v1.
STRIPE = Profile(
    name="stripe",
    title="Stripe v1",
    # docs.stripe.com/api/errors: 409, "perhaps due to using the same idempotent key".
    in_flight=frozenset({409}),
    # Other parameters, or another endpoint, are an idempotency_error. The page names no status;
    # stripe/stripe-ruby#503 shows a 400.
    mismatch=frozenset({400}),
    # A key can be attached to any POST request, and none needs one.
    missing_key=frozenset(),
    leaves_out=frozenset({Guarantee.MISSING_KEY}),
    # Keys have up to 255 characters. Nothing is said about which characters, or about two lines.
    key_max=255,
    strict_key=False,
    # stripe/stripe-ruby#905 and #1553 read it, and name the page of Stripe that tells of it.
    replay_header=("Idempotent-Replayed", "true"),
    # What is saved is "the status code and body" of the first request, 500 included.
    replays_headers=False,
    keeps_server_errors=True,
    # Nothing is said about other parameters while the first request runs: it is a conflict too.
    mismatch_first=False,
)
# What oncekey promises itself: docs/how-to/http.md and docs/reference/errors.md.
ONCEKEY = Profile(
    name="oncekey",
    title="oncekey",
    in_flight=frozenset({409}),
    mismatch=frozenset({422}),
    missing_key=frozenset({400}),
    bad_key=frozenset({400}),
    strict_key=True,
    key_max=255,
    replay_header=("X-Idempotency-Replayed", "true"),
    quoted_equals_bare=True,
    exact_body=True,
    # A 5xx is stored unless the operation is declared to be safe to retry: both may be met.
    keeps_server_errors=None,
)
PROFILES = {profile.name: profile for profile in (IETF, STRIPE, ONCEKEY)}
PROFILE_DEFAULT = IETF
