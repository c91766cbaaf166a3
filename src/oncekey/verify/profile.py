"""Profiles: what a specification or a service says about keys, as values the probes compare with.

ietf      draft-ietf-httpapi-idempotency-key-header-07
stripe    what the API of Stripe (v1) documents
oncekey   what oncekey itself promises, the strictest of them
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
    bad_key             statuses for a malformed key
    replay_header       name and value of the header that marks a replay, if it has one
    quoted_equals_bare  True if "k" and k must be one key; False if only one form is expected
    mismatch_first      True if a mismatch must be told while the first request is still running
    keeps_server_errors True if a 5xx of the handler is stored and replayed, False if it may be
                        run again where nothing happened, None if nothing is said
    cookies             True if a replay may carry cookies
    key_max             the longest key that must be accepted; longer ones must be refused
    leaves_out          guarantees that the profile does not give
    """

    name: str
    title: str
    in_flight: frozenset[int]
    mismatch: frozenset[int]
    missing_key: frozenset[int]
    bad_key: frozenset[int]
    replay_header: tuple[str, str] | None = None
    quoted_equals_bare: bool = False
    mismatch_first: bool = True
    keeps_server_errors: bool | None = None
    cookies: bool = False
    key_max: int = 255
    leaves_out: frozenset[Guarantee] = field(default_factory=frozenset)


IETF = Profile(
    name="ietf",
    title="IETF draft-07",
    in_flight=frozenset({409}),
    mismatch=frozenset({422}),
    missing_key=frozenset({400}),
    bad_key=frozenset({400}),
)
STRIPE = Profile(
    name="stripe",
    title="Stripe v1",
    in_flight=frozenset({409}),
    mismatch=frozenset({400}),
    missing_key=frozenset(),
    bad_key=frozenset({400}),
    replay_header=("Idempotent-Replayed", "true"),
    mismatch_first=False,
    keeps_server_errors=True,
    leaves_out=frozenset({Guarantee.MISSING_KEY}),
)
ONCEKEY = Profile(
    name="oncekey",
    title="oncekey",
    in_flight=frozenset({409}),
    mismatch=frozenset({422}),
    missing_key=frozenset({400}),
    bad_key=frozenset({400}),
    replay_header=("X-Idempotency-Replayed", "true"),
    quoted_equals_bare=True,
)
PROFILES = {profile.name: profile for profile in (IETF, STRIPE, ONCEKEY)}
PROFILE_DEFAULT = IETF
