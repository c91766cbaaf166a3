"""`make test-versions`: the suite on every CPython of this machine that oncekey supports.

Interpreters are looked for on PATH and in `~/.pyenv/versions`. Each has its own environment,
`.venv-3.12` and so on, which is made by `make setup` from the same hash-checked set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.repeated_runs import ROOT, minutes, run_logged, say

FOLDER: Final = ROOT / "build" / "test-versions"
OLDEST: Final = (3, 11)
# Each names ARGS: else it would be that of the `make` that started this.
PROOFS: Final = 'ARGS=-m "not seeded"'  # what draws lots says little of a version
_NAME: Final = re.compile(r"python3(\.\d+)?$")
_ASK: Final = (
    "import json, platform, sys;"
    "print(json.dumps([platform.python_implementation(), sys.version_info[:3],"
    " sys.version_info.releaselevel, sys.prefix == sys.base_prefix]))"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: Path
    version: tuple[int, int, int]

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


@dataclass(frozen=True, slots=True)
class Row:
    """What the suite said on one interpreter; the last line of pytest, or where it ended."""

    interpreter: Interpreter
    seconds: float
    is_green: bool
    result: str


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    found = interpreters(candidates())
    chosen = [each for each in found if not (options.others and _is_this(each))]
    if not chosen:
        say(f"no other CPython >= {OLDEST[0]}.{OLDEST[1]} is on this machine")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = []
    for interpreter in chosen:
        say(f"CPython {interpreter.name} ({interpreter.path}) ...")
        rows.append(_run(interpreter, ["quick", "ARGS="] if options.quick else ["test", PROOFS]))
        say(f"  {rows[-1].result}")
    say("")
    for line in table(rows):
        say(line)
    return 0 if all(row.is_green for row in rows) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("make test-versions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only what `make quick` runs")
    parser.add_argument("--others", action="store_true", help="not the Python of .venv again")
    return parser.parse_args(arguments)


def candidates() -> list[Path]:
    """Return every file that may be an interpreter."""
    folders = [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    folders += sorted((Path.home() / ".pyenv" / "versions").glob("*/bin"))
    return [
        path
        for folder in dict.fromkeys(folders)
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if _NAME.match(path.name) and os.access(path, os.X_OK)
    ]


def interpreters(paths: Iterable[Path]) -> list[Interpreter]:
    """Return the CPythons that oncekey supports, one for each version, the oldest first."""
    found: dict[tuple[int, int, int], Interpreter] = {}
    for path in paths:
        answer = _asked(path)
        if answer is None:
            continue
        implementation, version, level, is_own = answer
        is_ours = implementation == "CPython" and level == "final" and is_own
        if is_ours and version[:2] >= OLDEST:
            found.setdefault(version, Interpreter(path, version))
    return [found[version] for version in sorted(found)]


def _asked(path: Path) -> tuple[str, tuple[int, int, int], str, bool] | None:
    """Return what an interpreter says of itself; None where it does not run, as pyenv's shims do
    not for versions that are not chosen, or is one of a virtual environment."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True
        )
        implementation, (major, minor, patch), level, is_own = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return implementation, (major, minor, patch), level, is_own


def _run(interpreter: Interpreter, target: Sequence[str]) -> Row:
    log = FOLDER / f"{interpreter.name}.log"
    began = time.monotonic()
    status = run_logged(["make", *target, *_environment(interpreter)], log)
    seconds = time.monotonic() - began
    return Row(interpreter, seconds, status == 0, _last_line(log))


def _environment(interpreter: Interpreter) -> list[str]:
    """Return the variables of `make` for an environment of this interpreter. uv makes it where it
    can: Debian's Python comes without the module that does."""
    folder = ROOT / f".venv-{interpreter.name}"
    variables = [f"PYTHON={interpreter.path}", f"VENV={folder.name}"]
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        return variables
    if not (folder / "bin" / "python").exists():
        subprocess.run(
            [uv, "venv", "--quiet", "--seed", "--python", interpreter.path, folder], check=True
        )
    return [*variables, f"UV_PROGRAM={uv}"]


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line.strip("= ") for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    told = told or [line for line in lines if not line.startswith("make")]
    return (told or ["nothing"])[-1] + f" ({log.relative_to(ROOT)})"


def table(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'Python':8}  {'took':>9}  result"]
    for row in rows:
        state = "green" if row.is_green else "RED"
        lines.append(f"{row.interpreter.name:8}  {minutes(row.seconds):>9}  {state}: {row.result}")
    return lines


def _is_this(interpreter: Interpreter) -> bool:
    return interpreter.version == sys.version_info[:3]


if __name__ == "__main__":
    sys.exit(main())
