"""The cases: every pair of values that can work, in at least one crossing that runs; and every pair
that cannot, in one crossing that nothing else forbids.

The choice is greedy and the same in every run. `make soak` adds crossings until every three values
that can work together are in one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from tests.crossings.axes import AXES, Crossing
from tests.crossings.refusals import MISSING, REFUSALS, Refusal, is_missing, refusals_of

Choice = tuple[str, str]  # an axis and one of its values
_NAMES: Final = tuple(AXES)


def parts_of(crossing: Crossing, strength: int) -> set[tuple[Choice, ...]]:
    """The combinations of so many values that a crossing has."""
    return set(itertools.combinations(zip(_NAMES, crossing, strict=True), strength))


@functools.cache
def working(strength: int = 2) -> tuple[Crossing, ...]:
    """Crossings in which every combination of so many values occurs that can work at all."""
    chosen = list(working(strength - 1)) if strength > 2 else []
    done = set().union(*(parts_of(crossing, strength) for crossing in chosen))
    for part in all_parts(strength):
        if part not in done:
            best = _widest(part, done, strength)
            if best is not None:
                chosen.append(best)
                done |= parts_of(best, strength)
    return tuple(chosen)


@functools.cache
def refused() -> tuple[tuple[Crossing, Refusal], ...]:
    """A crossing for every pair that is refused, with the one refusal that it meets; and each
    refusal with every value of the other axes, because a surface may lose an error on its way."""
    found: dict[Crossing, Refusal] = {}
    for refusal in REFUSALS:
        done: set[tuple[Choice, ...]] = set()  # by this refusal
        for part in _refused_parts(refusal):
            if part not in done:
                crossing = _widest(part, done, 1, refusal)
                if crossing is not None:
                    found[crossing] = refusal
                    done |= parts_of(crossing, 1) | parts_of(crossing, len(refusal.values))
    return tuple(found.items())


def _refused_parts(refusal: Refusal) -> Iterator[tuple[Choice, ...]]:
    """The pairs of a refusal, and then every value for itself."""
    for values in itertools.product(*refusal.values.values()):
        yield _sorted(zip(refusal.values, values, strict=True))
    for axis, among in AXES.items():
        for value in among:
            yield ((axis, value),)


def _sorted(part: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(part, key=lambda choice: _NAMES.index(choice[0])))


def all_parts(strength: int) -> Iterator[tuple[Choice, ...]]:
    """All combinations of so many values."""
    # The largest axes first: the others find room in the crossings that these need.
    axes = sorted(_NAMES, key=lambda axis: -len(AXES[axis]))
    for some in itertools.combinations(axes, strength):
        for values in itertools.product(*(AXES[axis] for axis in some)):
            yield _sorted(zip(some, values, strict=True))


def _widest(
    part: Iterable[Choice],
    done: set[tuple[Choice, ...]],
    strength: int,
    only: Refusal | None = None,
) -> Crossing | None:
    """A crossing with these values that has many combinations that are not done; None if there is
    none that works, or that meets this refusal and no other."""
    fixed = dict(part)
    free = [axis for axis in _NAMES if axis not in fixed]

    def complete(chosen: dict[str, str], left: list[str]) -> Crossing | None:
        if not left:
            crossing = Crossing(**chosen)
            return crossing if _is_wanted(crossing, only) else None
        axis, *others = left
        # New pairs first; where there are none, the values take turns.
        turn = len(done) % len(AXES[axis])
        values = [*list(AXES[axis])[turn:], *list(AXES[axis])[:turn]]
        for value in sorted(values, key=lambda value: -_gain(chosen, axis, value, done, strength)):
            if _may_be({**chosen, axis: value}, only):
                found = complete({**chosen, axis: value}, others)
                if found is not None:
                    return found
        return None

    return complete(fixed, free)


def _gain(
    chosen: dict[str, str], axis: str, value: str, done: set[tuple[Choice, ...]], strength: int
) -> int:
    """How much would be new: the value itself, or what it forms with what is chosen."""
    if strength == 1:
        return ((axis, value),) not in done
    others = itertools.combinations(chosen.items(), strength - 1)
    return sum(_sorted([(axis, value), *some]) not in done for some in others)


def _is_wanted(crossing: Crossing, only: Refusal | None) -> bool:
    wanted = [] if only is None else [only]
    return not is_missing(crossing) and refusals_of(crossing) == wanted


def _may_be(chosen: dict[str, str], only: Refusal | None) -> bool:
    """False if what is chosen so far is refused already, whatever comes next, or if it cannot meet
    the refusal any more that it has to."""
    if only is not None and any(
        axis in chosen and chosen[axis] not in values for axis, values in only.values.items()
    ):
        return False
    forbidden = [refusal.values for refusal in REFUSALS if refusal is not only]
    forbidden += [missing.values for missing in MISSING]
    return not any(
        all(chosen.get(axis) in among for axis, among in values.items()) for values in forbidden
    )
