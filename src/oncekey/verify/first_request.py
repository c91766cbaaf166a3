"""The first request of a verification: it is valid, sent once, and must succeed and be counted.

What the probes say stands on this: a request that is refused, or a counter that does not see its
effect, would make every later verdict worthless. Ids are seen to count by a second operation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oncekey.verify.effect_counters import ResponseIdCounter
from oncekey.verify.probe import Budget, BudgetSpent, Limits, ProbeRun
from oncekey.verify.probes.known_outcome import answer
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
        exchange = await run.send(operation.request(), "the first request")
        if not exchange.is_success:
            raise FirstRequestFailed(_why_not(exchange), exchange)
        counter = await _working_counter(run, operation, exchange)
    except CountFailed as error:
        raise FirstRequestFailed(f"the effects cannot be counted: {error}") from error
    except BudgetSpent as error:
        raise FirstRequestFailed(str(error)) from error
    return FirstRequest(replace(target, effects=counter), exchange)


def _why_not(exchange: Exchange) -> str:
    response = exchange.response
    if response is not None and response.is_redirect:
        return (
            f"the request is answered by {exchange.outcome()} and sent on to "
            f"{response.header('location')}: give the URL that answers it"
        )
    return f"the request is not a valid one, or the API is not ready: {exchange.outcome()}"


async def _working_counter(
    run: ProbeRun, operation: Operation, exchange: Exchange
) -> EffectCounter | None:
    counter = run.target.effects
    if isinstance(counter, ResponseIdCounter):
        return await _telling_ids(run, counter, exchange)
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


async def _telling_ids(
    run: ProbeRun, counter: ResponseIdCounter, first: Exchange
) -> ResponseIdCounter | None:
    """Return a counter of the ids that differ between two operations; None if nobody asked for
    ids, and there are none. Raises FirstRequestFailed."""
    assert first.response is not None
    second = await answer(run, (await run.operation()).request(), "a second operation")
    if not second.is_success or second.response is None:
        raise FirstRequestFailed(
            f"a second operation, with a key of its own, is answered with {second.outcome()}; what "
            f"must differ needs a placeholder, such as {{{{unique}}}}",
            second,
        )
    found = counter.narrowed(first.response, second.response)
    if found is not None:
        return found
    if counter.places != ResponseIdCounter().places:
        places = " or ".join(counter.places)
        missing = counter.id_in(first.response) is None
        raise FirstRequestFailed(
            f"the response has no id at {places}"
            if missing
            else f"two operations have the same id at {places}, so it does not tell runs apart",
            second,
        )
    if first.response.is_redirect and second.response.is_redirect:
        raise FirstRequestFailed(
            f"every operation is answered by {first.outcome()} and sent on to "
            f"{first.response.header('location')}, so nothing seems to be made: check the URL and "
            f"the credentials, or count effects by --count-url, --count-command or --count-sql",
            second,
        )
    return None
