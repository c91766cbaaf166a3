"""The constructor both engines share: options checked, a kernel made."""

from __future__ import annotations

from typing import Any

from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee
from oncekey.core.identity import Identities
from oncekey.core.policy import Policy
from oncekey.engine.clock import Clock, SystemClock
from oncekey.engine.jobs import Kernel
from oncekey.engine.replay_cache import CACHE_ENTRIES_DEFAULT, ReplayCache


def make_kernel(
    guarantee: Guarantee,
    *,
    policy: Policy | None,
    secret: bytes | str | None,
    codec: Any,
    cache: int | None,
    raw_keys: bool,
    clock: Clock | None,
) -> Kernel:
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigurationError(f"policy must be a Policy, not a {type(policy).__name__}")
    entries = CACHE_ENTRIES_DEFAULT if cache is None else cache
    if not isinstance(entries, int) or entries < 0:
        raise ConfigurationError(f"cache={cache!r} must be a number of entries, 0 for none")
    return Kernel(
        policy=policy or Policy(),
        identities=Identities(secret),
        guarantee=guarantee,
        clock=clock or SystemClock(),
        cache=ReplayCache(entries),
        codec=codec,
        raw_keys=raw_keys,
    )
