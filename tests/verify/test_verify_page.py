"""The pages about `oncekey verify` say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_build import verify_page
from tests.docs.pages import DOCS, ROOT, blocks

from oncekey.cli.commands.verify import verify
from oncekey.verify.observability import missing_for
from oncekey.verify.target import Variant
from oncekey.verify.target_file import FILE_KEYS, read_target_file
from oncekey.verify.verdict import Fault, Guarantee

HOW_TO = DOCS / "how-to" / "verify.md"
COMMAND_LINE = DOCS / "reference" / "command-line.md"
ENVIRONMENT = {"ADA": "a", "GRACE": "g"}


def test_the_reference_is_made_from_the_code() -> None:
    assert verify_page.PAGE.read_text() == verify_page.page(), "run `make docs`"
    for name in (*(guarantee.slug for guarantee in Guarantee), *(fault.slug for fault in Fault)):
        assert f"\n| `{name}` | " in verify_page.page()


@pytest.mark.parametrize("table", FILE_KEYS)
def test_every_key_of_the_file_has_a_meaning(table: str) -> None:
    assert verify_page.MEANINGS[table].keys() == set(FILE_KEYS[table])


def test_the_file_on_the_page_is_one(tmp_path: Path) -> None:
    (text,) = blocks(HOW_TO, "toml")
    path = tmp_path / "charges.toml"
    path.write_text(text)
    target = read_target_file(path).target.target(ENVIRONMENT)
    assert target.variants.keys() == {
        Variant.MAIN,
        Variant.SLOW,
        Variant.REJECTED,
        Variant.FAILING,
    }


def test_the_file_of_the_broken_servers_leaves_nothing_unobservable_but_expiry() -> None:
    told = read_target_file(ROOT / "examples" / "broken" / "payments.toml")
    target = told.target.target({"ALICE": "a", "BOB": "b"})
    missing = {guarantee for guarantee in Guarantee if missing_for(guarantee, target) is not None}
    assert missing == {Guarantee.EXPIRY}


def test_every_option_is_in_the_reference() -> None:
    section = COMMAND_LINE.read_text().partition("\n## verify\n")[2].partition("\n## ")[0]
    options = {name for parameter in verify.params for name in parameter.opts if name[:2] == "--"}
    assert {name for name in options if name not in section} == {"--json"}
