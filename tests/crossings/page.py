"""The matrix as docs/explanation/how-it-is-tested.md shows it: axes, cases, refusals, rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.crossings.axes import AXES
from tests.crossings.covering_cases import refused, working
from tests.crossings.refusals import MISSING, REFUSALS
from tests.crossings.rules import RULES

PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "how-it-is-tested.md"
BEGIN, END = "<!-- The matrix begins. -->\n", "<!-- The matrix ends. -->\n"


def section() -> str:
    """The part of the page that comes from the table."""
    return "\n".join(_lines()) + "\n"


def written(page: str) -> str:
    """The page with that part as it is now."""
    head, _, rest = page.partition(BEGIN)
    assert rest, f"the page has lost its mark {BEGIN!r}"
    return f"{head}{BEGIN}\n{section()}\n{END}{rest.partition(END)[2]}"


def _lines() -> Iterator[str]:
    yield "Generated from the table of the tests by `make docs`; do not edit."
    yield ""
    yield "| axis | value | means |"
    yield "|---|---|---|"
    for axis, values in AXES.items():
        for number, (value, meaning) in enumerate(values.items()):
            yield f"| {'' if number else axis} | {value} | {meaning} |"
    yield "| python | the one that runs | `make test-versions` runs all of it on each |"
    yield ""
    yield (
        f"{len(working())} crossings have every pair of values that can work, and must keep every "
        f"rule. {len(refused())} have every pair that cannot, each refusal also with every value "
        "of the other axes; nothing runs there, and the error is the one of this table:"
    )
    yield ""
    yield "| these | with these | are refused with | because |"
    yield "|---|---|---|---|"
    for refusal in REFUSALS:
        one, other = _sides(refusal.values)
        yield f"| {one} | {other} | `{refusal.error}` | {refusal.why} |"
    yield ""
    for missing in MISSING:
        one, other = _sides(missing.values)
        yield f"Nothing can be asked for, and so nothing is refused, of {one} with {other}:"
        yield f"{missing.why}."
        yield ""
    yield "The rules:"
    yield ""
    for name, text in RULES.items():
        yield f"* **{name}**: {text}"


def _sides(values: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    sides = [f"{axis} {', '.join(among)}" for axis, among in values.items()]
    return sides[0], sides[1] if len(sides) > 1 else "anything"
