"""Interrupts a thread at the n-th place where Python would run a signal's handler in our code."""

from __future__ import annotations

import dis
import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Self

import oncekey

SOURCE = str(Path(oncekey.__file__).parent)
# Python runs signal handlers where a function begins, where a loop begins again, and after a call;
# but not where a plain function returns to another.
_ALWAYS = ("RESUME", "JUMP_BACKWARD", "CALL_FUNCTION_EX")
_NEVER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Stop(BaseException):
    """A BaseException that a signal handler raises, as Ctrl-C does."""


class TimeLimit(Exception):
    """An Exception that a signal handler raises, as a worker's time limit does."""


class Interrupter:
    """`with Interrupter(place, kind) as it:` raises `kind` at that place of this thread's path
    through oncekey; `it.came` is where that was, "" if there were fewer places."""

    def __init__(self, place: int, kind: type[BaseException]) -> None:
        self.place = place
        self.kind = kind
        self.places = 0
        self.came = ""
        self._before: dict[FrameType, str] = {}
        self._returned: set[FrameType] = set()  # a plain function has returned to it

    def __enter__(self) -> Self:
        self._old = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._old)
        self._before.clear()

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        plain = not frame.f_code.co_flags & _NEVER
        if event == "call" and plain and frame.f_back is not None:
            self._returned.add(frame.f_back)
        if self.came or not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._before.get(frame, "")
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            inlined = frame in self._returned
            self._returned.discard(frame)
            looks = before.startswith(_ALWAYS) or (before.startswith("CALL") and not inlined)
            # A call that raised leads to the exception's handler at once.
            looks = looks and self._before[frame] != "PUSH_EXC_INFO"
            # The first instruction of a task belongs to asyncio: nothing of ours can catch it.
            if looks and (before, frame.f_code.co_name) != ("RESUME", "_run_in_task"):
                self.places += 1
                if self.places == self.place:
                    self.came = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    raise self.kind
        return self._trace
