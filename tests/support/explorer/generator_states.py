"""Generators as values: where a generator stands, read from its frames.

A generator cannot be copied, but it is deterministic: a new one that is sent the same results
stands in the same state. Two states are the same if they wait for the same effect and their frames
agree, from the outermost to the innermost: which code, which instruction, and the values of the
variables that can still be read. So different histories with the same future become one state, and
each step of a generator is computed only once. The length of a sleep does not count, because in
the explorer a sleeper may wake at any time.

Results and variables are compared by their repr; the values of core print all they hold, and the
explorer's own errors differ in their texts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import FrameType, GeneratorType

from tests.support.explorer.live_variables import live_values

from oncekey.core.effects import Effect, Sleep

AnyFlow = Generator[Effect, object, object]


class GeneratorState:
    """Where a generator stands: the effect it waits for, what it returned, or what it raised."""

    __slots__ = ("_after", "_history", "_live", "_make", "effect", "raised", "value")

    def __init__(self, make: Callable[[], AnyFlow], history: tuple[object, ...]) -> None:
        self._make = make
        self._history = history
        self._live: AnyFlow | None = None
        self._after: dict[str, tuple[object, GeneratorState]] = {}
        self.effect: Effect | None = None
        self.value: object = None
        self.raised: Exception | None = None

    def edges(self) -> list[tuple[object, GeneratorState]]:
        """The results sent in this state so far, and the states they led to."""
        return list(self._after.values())


class GeneratorStates:
    """All states seen, each once."""

    def __init__(self) -> None:
        self._known: dict[str, GeneratorState] = {}

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, make: Callable[[], AnyFlow]) -> GeneratorState:
        return self._reached(make, make(), (None,))

    def advance(self, state: GeneratorState, result: object) -> GeneratorState:
        """The state that this result leads to."""
        memo = repr(result)
        known = state._after.get(memo)
        if known is None:
            live = self._at(state)
            after = self._reached(state._make, live, (*state._history, result))
            known = state._after[memo] = (result, after)
        return known[1]

    def _at(self, state: GeneratorState) -> AnyFlow:
        """A generator in that state: the one that reached it first, or a new one led there."""
        live, state._live = state._live, None
        if live is None:
            live = state._make()
            for result in state._history:
                live.send(result)
        return live

    def _reached(
        self, make: Callable[[], AnyFlow], live: AnyFlow, history: tuple[object, ...]
    ) -> GeneratorState:
        found = GeneratorState(make, history)
        try:
            found.effect = live.send(history[-1])
        except StopIteration as stop:
            found.value = stop.value
            signature = f"returned {stop.value!r}"
        except Exception as error:  # a bug of the flow, which is shown with the way there
            found.raised = error
            signature = f"raised {error!r}"
        else:
            signature = f"{effect_text(found.effect)} {frames(live)}"
            found._live = live
        return self._known.setdefault(signature, found)


def effect_text(effect: Effect | None) -> str:
    """An effect as far as it tells states apart."""
    return f"sleep, watching {effect.watch!r}" if isinstance(effect, Sleep) else repr(effect)


def frames(generator: AnyFlow) -> list[tuple[str, int, list[tuple[str, str]]]]:
    """What a suspended generator holds: (code, instruction, variables) of each nested frame."""
    found = []
    inner: object = generator
    while isinstance(inner, GeneratorType):
        frame: FrameType | None = inner.gi_frame
        assert frame is not None
        found.append((frame.f_code.co_qualname, frame.f_lasti, live_values(frame)))
        inner = inner.gi_yieldfrom
    return found
