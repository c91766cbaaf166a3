"""Generators as values: what a running generator holds, said by its frames.

A generator cannot be copied, but it is deterministic: feeding a fresh one the same answers leads
to the same place. A `GeneratorState` is such a place. Two places are the same if they effect for the same and
their frames agree, from the outermost to the innermost: which code, which instruction, which
state values that can still be read. So histories that left nothing behind fall together, and
every step of a generator is computed only once. (How long a sleep is does not tell places apart:
here a sleeper may wake at any time.)

Answers and state values are compared by their repr; the values of core print all they held, and
the explorer's own errors differ in their texts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import FrameType, GeneratorType

from tests.support.explorer.live_variables import held

from oncekey.core.effects import Effect, Sleep

AnyFlow = Generator[Effect, object, object]


class GeneratorState:
    """Where a generator stands: the effect it waits on, or what it returned, or how it raised."""

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
        """The answers given here so far, and where they led."""
        return list(self._after.values())


class GeneratorStates:
    """All places seen, each once."""

    def __init__(self) -> None:
        self._known: dict[str, GeneratorState] = {}

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, make: Callable[[], AnyFlow]) -> GeneratorState:
        return self._arrive(make, make(), (None,))

    def advance(self, state: GeneratorState, answer: object) -> GeneratorState:
        """The place reached from `state` by this answer."""
        memo = repr(answer)
        known = state._after.get(memo)
        if known is None:
            live = self._at(state)
            after = self._arrive(state._make, live, (*state._history, answer))
            known = state._after[memo] = (answer, after)
        return known[1]

    def _at(self, state: GeneratorState) -> AnyFlow:
        """A generator standing there: the one that found the place, or one led there again."""
        live, state._live = state._live, None
        if live is None:
            live = state._make()
            for answer in state._history:
                live.send(answer)
        return live

    def _arrive(
        self, make: Callable[[], AnyFlow], live: AnyFlow, history: tuple[object, ...]
    ) -> GeneratorState:
        found = GeneratorState(make, history)
        try:
            found.effect = live.send(history[-1])
        except StopIteration as stop:
            found.value = stop.value
            signature = f"returned {stop.value!r}"
        except Exception as error:  # a bug of the flow, to be shown with the way there
            found.raised = error
            signature = f"raised {error!r}"
        else:
            signature = f"{asked(found.effect)} {frames(live)}"
            found._live = live
        return self._known.setdefault(signature, found)


def asked(effect: Effect | None) -> str:
    """An effect as far as it matters here."""
    return f"sleep, watching {effect.watch!r}" if isinstance(effect, Sleep) else repr(effect)


def frames(generator: AnyFlow) -> list[tuple[str, int, list[tuple[str, str]]]]:
    """What a suspended generator holds: (code, instruction, generators) of each nested frame."""
    found = []
    inner: object = generator
    while isinstance(inner, GeneratorType):
        frame: FrameType | None = inner.gi_frame
        assert frame is not None
        found.append((frame.f_code.co_qualname, frame.f_lasti, held(frame)))
        inner = inner.gi_yieldfrom
    return found
