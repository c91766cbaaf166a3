"""A copy of the source tree in which the edits of a mutant are made, for tools that are processes.

The copy is first on the path of the process, so that everything which it imports, forks or starts
has the bug, its SQL included. The real tree is not changed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.explorer.mutation import Edit, edited
from tests.support.mutants.core_mutants import Mutant
from tests.support.mutants.sql_mutants import SQLMutant

import oncekey

ROOT = Path(__file__).parents[3]
PACKAGE = Path(oncekey.__file__).parent
_SQL = PACKAGE / "stores" / "postgres" / "sql"


@contextmanager
def source_tree(mutant: Mutant | SQLMutant | None) -> Iterator[dict[str, str]]:
    """Yield the environment of a process that runs this mutant; None is the source as it is."""
    with tempfile.TemporaryDirectory(prefix="oncekey-mutant-") as name:
        copy = Path(name) / PACKAGE.name
        # Links are as good as copies, and quicker; bytecode is linked too and stays valid.
        shutil.copytree(PACKAGE, copy, copy_function=os.symlink)
        for path, edit in [] if mutant is None else _edits_of(mutant):
            file = copy / path.relative_to(PACKAGE)
            text = edited(file.read_text("utf-8"), path.name, edit)
            file.unlink()
            file.write_text(text, "utf-8")
            for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
                stale.unlink()
        yield {**os.environ, "PYTHONPATH": name}


def _edits_of(mutant: Mutant | SQLMutant) -> list[tuple[Path, Edit]]:
    if isinstance(mutant, SQLMutant):
        return [(_sql_file(edit), edit) for edit in mutant.setup.edits]
    edits = [*((mutant.module, edit) for edit in mutant.edits), *mutant.drivers]
    return [(Path(str(module.__file__)), edit) for module, edit in edits]


def _sql_file(edit: Edit) -> Path:
    """The one file of SQL that has the text of this edit."""
    (found,) = [file for file in _SQL.rglob("*.sql") if edit.old in file.read_text("utf-8")]
    return found
