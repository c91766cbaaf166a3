"""Nothing needs a later release of Python 3.11 than the first: Debian 12 has 3.11.2."""

from __future__ import annotations

import ast

from tests.support.tracked_files import text_of, tracked

# `make check` has vermin find what is newer than 3.11, but vermin knows no patch releases. This is
# what those of 3.11 have added to the standard library, and the release it came with.
LATER_NAMES = {
    "ENOTCAPABLE": "3.11.1",
    "extraction_filter": "3.11.4",
    "data_filter": "3.11.4",
    "tar_filter": "3.11.4",
    "fully_trusted_filter": "3.11.4",
    "FilterError": "3.11.4",
    "SetReparseDeferralEnabled": "3.11.9",
    "GetReparseDeferralEnabled": "3.11.9",
    "ALLOW_MISSING": "3.11.13",
    "LinkFallbackError": "3.11.13",
}
# Function and argument.
LATER_ARGUMENTS = {
    ("extract", "filter"): "3.11.4",
    ("extractall", "filter"): "3.11.4",
    ("unpack_archive", "filter"): "3.11.4",
    ("clone", "verify_generated_headers"): "3.11.10",
    ("EmailPolicy", "verify_generated_headers"): "3.11.10",
    ("getaddresses", "strict"): "3.11.10",
    ("parseaddr", "strict"): "3.11.10",
}


def later_than_3_11_0(text: str) -> list[str]:
    """What a module uses that the first release of Python 3.11 does not have."""
    calls = (f"{name}(" in text and f"{argument}=" in text for name, argument in LATER_ARGUMENTS)
    if not any(calls) and not any(name in text for name in LATER_NAMES):
        return []  # as almost every module, so that it need not be parsed
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute | ast.Name | ast.alias):
            name = _last_name(node)
            if name in LATER_NAMES:
                found.append(f"{node.lineno}: {name} ({LATER_NAMES[name]})")
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                argument = (_last_name(node.func), keyword.arg or "")
                if argument in LATER_ARGUMENTS:
                    called = f"{argument[0]}({argument[1]}=)"
                    found.append(f"{node.lineno}: {called} ({LATER_ARGUMENTS[argument]})")
    return found


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return str(getattr(node, "id", getattr(node, "name", "")))


def test_nothing_needs_a_later_release_of_python_3_11() -> None:
    names = [name for name in tracked() if name.endswith(".py")]
    found = [f"{name}:{what}" for name in names for what in later_than_3_11_0(text_of(name))]
    assert found == [], "Debian 12 has Python 3.11.2"


def test_what_a_later_release_of_python_3_11_added_is_found() -> None:
    source = "import errno\npacked.extractall(folder, filter='data')\nerrno.ENOTCAPABLE"
    found = later_than_3_11_0(source)
    assert found == ["2: extractall(filter=) (3.11.4)", "3: ENOTCAPABLE (3.11.1)"]
    assert later_than_3_11_0("packed.extractall(folder)") == []
    assert later_than_3_11_0("packed.extractall(folder)\nsearch(filter=1)") == []
