"""Reads answers that operators give on the command line, from a file or from stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from oncekey.cli.open_store import UsageProblem

ANSWER_MAX_BYTES: Final = 1_048_576


def read_bytes(option: str, text: str) -> bytes:
    """The text, or the content of the file that `@FILE` names, or stdin for `-`."""
    if text == "-":
        content = sys.stdin.buffer.read(ANSWER_MAX_BYTES + 1)
    elif text.startswith("@"):
        try:
            with Path(text[1:]).open("rb") as file:
                content = file.read(ANSWER_MAX_BYTES + 1)
        except OSError as error:
            raise UsageProblem(f"{option} {text}: {error.strerror}") from error
    else:
        content = text.encode(errors="surrogateescape")
    if len(content) > ANSWER_MAX_BYTES:
        raise UsageProblem(f"{option}: longer than {ANSWER_MAX_BYTES:,} bytes")
    return content


class AnswerCodec:
    """Writes plain JSON under the name of the operation's own codec, which reads it back."""

    def __init__(self, name: str) -> None:
        self.name = name

    def dump(self, value: Any, /) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def load(self, data: bytes, /) -> Any:
        return json.loads(data)
