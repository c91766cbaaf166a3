"""Generators as values: what a running generator holds, told by its frames.

A generator cannot be copied, but it is deterministic: feeding a fresh one the same answers leads
to the same place. A `Local` is such a place. Two places are the same if they ask for the same and
their frames agree, from the outermost to the innermost: which code, which instruction, which
local values that can still be read. So histories that left nothing behind fall together, and
every step of a generator is computed only once. (How long a sleep is does not tell places apart:
here a sleeper may wake at any time.)

Answers and local values are compared by their repr; the values of core print all they hold, and
the explorer's own errors differ in their texts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import FrameType, GeneratorType

from tests.support.explorer.liveness import held

from oncekey.core.effects import Effect, Sleep

AnyFlow = Generator[Effect, object, object]


class Local:
    """Where a generator stands: the ask it waits on, or what it returned, or how it broke."""

    __slots__ = ("_after", "_history", "_live", "_make", "ask", "broke", "value")

    def __init__(self, make: Callable[[], AnyFlow], history: tuple[object, ...]) -> None:
        self._make = make
        self._history = history
        self._live: AnyFlow | None = None
        self._after: dict[str, tuple[object, Local]] = {}
        self.ask: Effect | None = None
        self.value: object = None
        self.broke: Exception | None = None

    def edges(self) -> list[tuple[object, Local]]:
        """The answers given here so far, and where they led."""
        return list(self._after.values())


class Locals:
    """All places seen, each once."""

    def __init__(self) -> None:
        self._known: dict[str, Local] = {}

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, make: Callable[[], AnyFlow]) -> Local:
        return self._arrive(make, make(), (None,))

    def advance(self, local: Local, answer: object) -> Local:
        """The place reached from `local` by this answer."""
        memo = repr(answer)
        known = local._after.get(memo)
        if known is None:
            live = self._at(local)
            after = self._arrive(local._make, live, (*local._history, answer))
            known = local._after[memo] = (answer, after)
        return known[1]

    def _at(self, local: Local) -> AnyFlow:
        """A generator standing there: the one that found the place, or one led there again."""
        live, local._live = local._live, None
        if live is None:
            live = local._make()
            for answer in local._history:
                live.send(answer)
        return live

    def _arrive(
        self, make: Callable[[], AnyFlow], live: AnyFlow, history: tuple[object, ...]
    ) -> Local:
        found = Local(make, history)
        try:
            found.ask = live.send(history[-1])
        except StopIteration as stop:
            found.value = stop.value
            signature = f"returned {stop.value!r}"
        except Exception as error:  # a bug of the flow, to be shown with the way there
            found.broke = error
            signature = f"broke {error!r}"
        else:
            signature = f"{asked(found.ask)} {frames(live)}"
            found._live = live
        return self._known.setdefault(signature, found)


def asked(ask: Effect | None) -> str:
    """An ask as far as it matters here."""
    return f"sleep, watching {ask.watch!r}" if isinstance(ask, Sleep) else repr(ask)


def frames(generator: AnyFlow) -> list[tuple[str, int, list[tuple[str, str]]]]:
    """What a suspended generator holds: (code, instruction, locals) of each nested frame."""
    found = []
    inner: object = generator
    while isinstance(inner, GeneratorType):
        frame: FrameType | None = inner.gi_frame
        assert frame is not None
        found.append((frame.f_code.co_qualname, frame.f_lasti, held(frame)))
        inner = inner.gi_yieldfrom
    return found
