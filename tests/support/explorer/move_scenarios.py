"""The scenarios of a move that are always explored, and those that `make soak` adds."""

from __future__ import annotations

from itertools import product

from tests.support.explorer.move_world import MoveScenario, MovingActor

BEHIND, AHEAD = -15, 15  # the new store's clock, against the old one's; a tick is 10


def _name(text: str, retry_safe: bool, ahead: int) -> str:
    kind = "fenced" if retry_safe else "at most once"
    return f"{text}, {kind}, {ahead:+}"


def beside_old(retry_safe: bool, ahead: int, *more: str) -> MoveScenario:
    """Processes leave the old store one by one: some know both, some still the old one only."""
    actors = [MovingActor("X", "old", retry_safe), MovingActor("D", "both", retry_safe)]
    actors += [MovingActor(name, "both", retry_safe) for name in more]
    name = _name(f"dual beside old{' ' + ''.join(more) if more else ''}", retry_safe, ahead)
    ticks = 2 if more else 4
    return MoveScenario(name, tuple(actors), ticks, ahead=ahead, seen_by=("old", "both"))


def beside_new(retry_safe: bool, ahead: int, *more: str) -> MoveScenario:
    """Everything was copied: some know both, some already the new one only."""
    actors = [MovingActor("D", "both", retry_safe), MovingActor("Y", "new", retry_safe)]
    actors += [MovingActor(name, "both", retry_safe) for name in more]
    name = _name(f"dual beside new{' ' + ''.join(more) if more else ''}", retry_safe, ahead)
    ticks = 2 if more else 4
    return MoveScenario(name, tuple(actors), ticks, ahead=ahead, seen_by=("new", "both"))


def whole_move(retry_safe: bool, ahead: int) -> MoveScenario:
    """Old only, then copied, then new only, with a process in dual mode all the time."""
    actors = (
        MovingActor("X", "old", retry_safe),
        MovingActor("D", "both", retry_safe),
        MovingActor("C", "copy", after=("X",)),
        MovingActor("Y", "new", retry_safe, after=("X", "C")),
    )
    return MoveScenario(_name("the whole move", retry_safe, ahead), actors, 3, ahead=ahead)


ALWAYS = (
    *(make(safe, BEHIND) for make in (beside_old, beside_new) for safe in (False, True)),
    whole_move(False, AHEAD),
    whole_move(True, BEHIND),
    beside_new(True, BEHIND, "E"),
)
SOAK = tuple(
    make(safe, ahead, *more)
    for make, safe, ahead, more in product(
        (beside_old, beside_new), (False, True), (0, BEHIND, AHEAD), ((), ("E",))
    )
) + tuple(whole_move(safe, ahead) for safe in (False, True) for ahead in (0, BEHIND, AHEAD))
