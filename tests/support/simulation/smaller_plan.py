"""Makes a plan that breaks an invariant as small as it can be while it still breaks it.

Calls, tries and faults are taken out one by one, bodies and settings made simpler, until nothing
more can go. What is left is the story that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.support.explorer.scenario import BodyEnding
from tests.support.simulation.plan import MILLISECOND, Call, Plan

StillBroken = Callable[[Plan], bool]


def smaller(plan: Plan, still_broken: StillBroken) -> Plan:
    """The smallest plan that can be reached by single simplifications."""
    shrunk = True
    while shrunk:
        shrunk = False
        for simpler in _simpler(plan):
            if still_broken(simpler):
                plan = simpler
                shrunk = True
                break
    return plan


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Plans that are simpler by one thing, the largest things first."""
    for index in range(len(plan.calls)):
        yield plan._replace(calls=plan.calls[:index] + plan.calls[index + 1 :])
    for index in range(len(plan.faults)):
        yield plan._replace(faults=plan.faults[:index] + plan.faults[index + 1 :])
    for index, call in enumerate(plan.calls):
        for simpler in _simpler_calls(call):
            yield plan._replace(calls=(*plan.calls[:index], simpler, *plan.calls[index + 1 :]))
    if plan.settings[1] != plan.settings[0]:
        yield plan._replace(settings=(plan.settings[0], plan.settings[0]))
    if plan.spread > 1:
        yield plan._replace(spread=1)
    if any(process.drift for process in plan.processes):
        yield plan._replace(processes=tuple(one._replace(drift=0) for one in plan.processes))
    first, second = plan.settings
    if first.registered or second.registered:
        plain = (first._replace(registered=False), second._replace(registered=False))
        yield plan._replace(settings=plain)
    if first.recoverable or second.recoverable:
        plain = (first._replace(recoverable=False), second._replace(recoverable=False))
        yield plan._replace(settings=plain)


def _simpler_calls(call: Call) -> Iterator[Call]:
    body = call.body
    if len(call.tries) > 1:
        yield call._replace(tries=call.tries[:-1])
        yield call._replace(tries=call.tries[1:])
    if body.steps:
        yield call._replace(body=body._replace(steps=0))
    if body.ending is not BodyEnding.RETURNED:
        yield call._replace(body=body._replace(ending=BodyEnding.RETURNED, acts=True))
    if not body.careful:
        yield call._replace(body=body._replace(careful=True))
    if body.after > MILLISECOND:
        yield call._replace(body=body._replace(after=MILLISECOND))
    if body.before > MILLISECOND:
        yield call._replace(body=body._replace(before=MILLISECOND))
    if call.request:
        yield call._replace(request=0)
