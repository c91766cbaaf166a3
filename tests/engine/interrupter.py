"""Interrupts a thread at the n-th place where a Python may run a signal's handler in our code.

No version says where it does. CPython does so where a function begins, where a loop begins again
and after calls, but after which calls changes from version to version: not, so far, where a plain
function returns to another. Here all of them count, so that what is proved depends on none.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

import oncekey

SOURCE = str(Path(oncekey.__file__).parent)
_AFTER = ("RESUME", "JUMP_BACKWARD", "CALL")
_NO_CALL = "CALL_INTRINSIC"
# From 3.12 on, a task that is interrupted before its first line has ended when its caller goes on.
# Before, it begins later, and what interrupts it there goes to the event loop alone.
_TASKS_BEGIN_LATER = sys.version_info < (3, 12)


class Stop(BaseException):
    """A BaseException that a signal handler raises, as Ctrl-C does."""


class TimeLimit(Exception):
    """An Exception that a signal handler raises, as a worker's time limit does."""


def _never() -> bool:
    return False


class Interrupter:
    """`with Interrupter(place, kind) as it:` raises `kind` at that place of this thread's path
    through oncekey.

    came    where that was, "" if there were fewer places
    handed  by then oncekey had what the body returned: since `returned()` it had assigned something
    """

    def __init__(
        self,
        place: int,
        kind: type[BaseException],
        *,
        within: tuple[str, ...] = (SOURCE,),
        returned: Callable[[], bool] = _never,
    ) -> None:
        self.kind = kind
        self.came = ""
        self.handed = False
        self._left = place
        self._within = within
        self._returned = returned
        self._before: dict[FrameType, str] = {}

    def __enter__(self) -> Self:
        # Python 3.12.1 crashes if another thread collects garbage while a generator is traced.
        self._collects = gc.isenabled()
        gc.disable()
        # Python 3.12 traces instructions only if a frame has asked for it before.
        sys._getframe().f_trace_opcodes = True
        self._old = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._old)
        self._before.clear()
        if self._collects:
            gc.enable()

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.came or not frame.f_code.co_filename.startswith(self._within):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._before.get(frame, "")
            self._before[frame] = name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before == "STORE_ATTR" and self._returned():
                self.handed = True
            if self._is_place(before, name, frame.f_code.co_name):
                self._left -= 1
                if self._left == 0:
                    self.came = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    self.interrupt()
        return self._trace

    def interrupt(self) -> None:
        """What the signal's handler does."""
        raise self.kind

    def _is_place(self, before: str, name: str, function: str) -> bool:
        if not before.startswith(_AFTER) or before.startswith(_NO_CALL):
            return False
        if _TASKS_BEGIN_LATER and (before, function) == ("RESUME", "_run_in_task"):
            return False
        # A call that raised leads to the exception's handler at once.
        return name != "PUSH_EXC_INFO"
