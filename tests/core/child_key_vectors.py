"""The inputs of docs/reference/child-key-vectors.json, and the file as the library writes it.

`python -m tests.core.child_key_vectors` writes it. Add cases, but never change an expected value:
services in other languages were checked against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oncekey.core.derived_keys import key_for
from oncekey.core.fingerprint import canonical
from oncekey.core.identity import child_key, child_uuid

FILE = Path(__file__).parents[2] / "docs" / "reference" / "child-key-vectors.json"
SPECIFICATION = "child-keys.md"

_ASCII = b"0123456789abcdef".hex()
_BINARY = bytes(range(32)).hex()
_LONGEST = bytes(range(255, 191, -1)).hex()

# What it shows, scope, operation, key, step, secret in hex.
CHILDREN: list[tuple[str, str, str, str, str, str | None]] = [
    ("an ordinary one", "acct_1", "charge", "order-17", "payment:charge", None),
    ("a secret of 16 bytes", "acct_1", "charge", "order-17", "payment:charge", _ASCII),
    ("a secret of any bytes", "acct_1", "charge", "order-17", "payment:charge", _BINARY),
    ("the longest secret", "acct_1", "charge", "order-17", "payment:charge", _LONGEST),
    ("another tenant", "acct_2", "charge", "order-17", "payment:charge", None),
    ("no tenant", "", "charge", "order-17", "payment:charge", None),
    ("no tenant and no operation", "", "", "k", "s", None),
    ("the same, keyed", "", "", "k", "s", _BINARY),
    ("a delimiter, 1 of 4", "a:b", "c", "d", "e", None),
    ("a delimiter, 2 of 4", "a", "b:c", "d", "e", None),
    ("a delimiter, 3 of 4", "a", "b", "c:d", "e", None),
    ("a delimiter, 4 of 4", "a", "b", "c", "d:e", None),
    ("a boundary, 1 of 3", "ab", "c", "d", "e", None),
    ("a boundary, 2 of 3", "a", "bc", "d", "e", None),
    ("a boundary, 3 of 3", "", "abc", "d", "e", None),
    ("digits like lengths, 1 of 2", "1", "1", "1", "1", None),
    ("digits like lengths, 2 of 2", "", "11", "1", "1", None),
    ("spaces, quotes and backslashes", " a ", "\"b'", "c\\n", "{d}, %s", None),
    ("a UUID", "", "http", "8e03978e-40d5-43dd-bc93-6894a57f9324", "mail", None),
    ("two bytes each", "zürich", "überweisen", "ключ", "שלב", None),
    ("one code point", "caf\u00e9", "op", "k", "s", None),
    ("the same look in two: no normalisation", "cafe\u0301", "op", "k", "s", None),
    ("combining characters", "a\u0323\u0307", "q\u0307\u0323", "e\u0301\u0301", "n\u0303", None),
    ("beyond the BMP: four bytes each", "😀", "𝒳", "𠜎𠜱", "🍰:🍰", None),
    ("beyond the BMP, keyed", "😀", "𝒳", "𠜎𠜱", "🍰:🍰", _ASCII),
    ("the angstrom sign and the letter", "\u212b", "\ufb01", "\u00c5", "A\u030a", None),
    ("the longest, one byte each", "s" * 255, "o" * 100, "k" * 255, "n" * 100, None),
    ("the longest, four bytes each", "😀" * 255, "𝒳" * 100, "𠜎" * 255, "🍰" * 100, _LONGEST),
]  # fmt: skip

# What it shows, operation, params, occurrence, namespace, secret in hex.
DERIVED: list[tuple[str, str, Any, str | int | None, str | None, str | None]] = [
    ("an ordinary one", "buy", {"sku": "A-1", "count": 2}, None, None, None),
    ("members in any order", "buy", {"count": 2, "sku": "A-1"}, None, None, None),
    ("an occurrence", "buy", {"sku": "A-1", "count": 2}, "cart-7", None, None),
    ("an occurrence that is a number", "buy", {"sku": "A-1", "count": 2}, 1, None, None),
    ("the same as text", "buy", {"sku": "A-1", "count": 2}, "1", None, None),
    ("a date", "buy", {"sku": "A-1", "count": 2}, "2026-10-17", None, None),
    ("a namespace", "buy", {"sku": "A-1", "count": 2}, None, "v2", None),
    ("the longest namespace", "buy", {"sku": "A-1", "count": 2}, None, "2026.10-eu_west1", None),
    ("everything", "buy", {"sku": "A-1", "count": 2}, "cart-7", "v2", _BINARY),
    ("text, not a number", "buy", {"sku": "A-1", "count": "2"}, None, None, None),
    ("nothing", "buy", None, None, None, None),
    ("an empty list", "buy", [], None, None, None),
    ("an empty object", "buy", {}, None, None, None),
    ("empty texts", "buy", {"": ""}, None, None, None),
    ("words", "buy", [True, False, None], None, None, None),
    ("whole numbers of any size", "buy", [0, -1, 2**53 + 1, -(2**64), 10**30], None, None, None),
    ("nesting", "buy", {"b": [1, {"d": 4, "c": [[]]}], "a": {"y": {}, "x": []}}, None, None, None),
    ("escapes", "buy", 'a"b\\c/d\b\f\n\r\t\x00\x1f\x7f e', None, None, None),
    ("beyond ASCII", "übung", {"näme": "caf\u00e9 😀", "nāme": "cafe\u0301"}, "\u00e9", None, None),
    ("order by code point, not by UTF-16", "buy", {"😀": 1, "\uff5e": 2, "z": 3}, None, None, None),
]  # fmt: skip


def made() -> dict[str, Any]:
    """Every case with what the library makes of it."""
    return {
        "specification": SPECIFICATION,
        "child_keys": [
            {
                "about": about,
                "scope": scope,
                "operation": operation,
                "key": key,
                "step": step,
                "secret_hex": secret,
                "child_key": child_key(
                    key, step, scope=scope, operation=operation, secret=_bytes(secret)
                ),
                "child_uuid": str(
                    child_uuid(key, step, scope=scope, operation=operation, secret=_bytes(secret))
                ),
            }
            for about, scope, operation, key, step, secret in CHILDREN
        ],
        "key_for": [
            {
                "about": about,
                "operation": operation,
                "params": params,
                "params_canonical": canonical(params).decode(),
                "occurrence": occurrence,
                "namespace": namespace,
                "secret_hex": secret,
                "key": key_for(
                    operation,
                    params,
                    occurrence=occurrence,
                    namespace=namespace,
                    secret=_bytes(secret),
                ),
            }
            for about, operation, params, occurrence, namespace, secret in DERIVED
        ],
    }


def text() -> str:
    """The file. ASCII only: an editor that normalises Unicode must not change what is tested."""
    return json.dumps(made(), indent=1, ensure_ascii=True) + "\n"


def _bytes(secret_hex: str | None) -> bytes | None:
    return None if secret_hex is None else bytes.fromhex(secret_hex)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="ascii")
