"""The first request of a verification: it is valid, sent once, and must succeed and be counted.

What the probes say stands on this: a request that is refused, or a counter that does not see its
effect, would make every later verdict worthless.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oncekey.verify.effect_counters import ResponseIdCounter
from oncekey.verify.probe import Budget, Limits, ProbeRun
from oncekey.verify.profile import Profile
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import CountFailed, EffectCounter, Operation, Target


class FirstRequestFailed(Exception):
    """The probes cannot begin.

    exchange   what was sent and what came back; None if nothing was sent
    """

    def __init__(self, message: str, exchange: Exchange | None = None) -> None:
        super().__init__(message)
        self.exchange = exchange


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """What the first request has shown.

    target   the target with a counter that is known to work, or with none
    """

    target: Target
    exchange: Exchange


async def try_first_request(
    target: Target, profile: Profile, limits: Limits, budget: Budget
) -> FirstRequest:
    """Send the plain request once. Raises FirstRequestFailed."""
    run = ProbeRun(target, profile, limits, budget)
    try:
        operation = await run.operation()
    except CountFailed as error:
        raise FirstRequestFailed(f"the effects cannot be counted: {error}") from error
    exchange = await run.send(operation.request(), "the first request")
    if not exchange.is_success:
        raise FirstRequestFailed(
            f"the request is not a valid one, or the API is not ready: {exchange.outcome()}",
            exchange,
        )
    counter = await _working_counter(run, operation, exchange)
    return FirstRequest(replace(target, effects=counter), exchange)


async def _working_counter(
    run: ProbeRun, operation: Operation, exchange: Exchange
) -> EffectCounter | None:
    counter = run.target.effects
    if isinstance(counter, ResponseIdCounter):
        assert exchange.response is not None
        found = counter.narrowed(exchange.response)
        if found is None and counter.places != ResponseIdCounter().places:
            raise FirstRequestFailed(
                f"the response has no id at {' or '.join(counter.places)}", exchange
            )
        return found
    try:
        effects = await run.effects(operation)
    except CountFailed as error:
        raise FirstRequestFailed(f"the effects cannot be counted: {error}", exchange) from error
    if counter is not None and effects != 1:
        raise FirstRequestFailed(
            f"one request had its effect, and the counter saw {effects}: {counter.describe()}",
            exchange,
        )
    return counter
