"""The test vectors for other languages, computed from the text of docs/reference/child-keys.md.

Nothing of the library that derives keys is used on this side of the comparison: `derive` and
`written` below follow the page alone.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.core.child_key_vectors import FILE, text

VECTORS: dict[str, Any] = json.loads(FILE.read_text(encoding="ascii"))
CHILDREN: list[dict[str, Any]] = VECTORS["child_keys"]
DERIVED: list[dict[str, Any]] = VECTORS["key_for"]
PAGE = FILE.with_name(VECTORS["specification"])


# --- the specification, once more -------------------------------------------------------------


def derive(label: str, parts: list[str], secret_hex: str | None) -> bytes:
    message = label.encode("ascii")
    for part in parts:
        message += struct.pack(">I", len(part.encode("utf-8")))
    for part in parts:
        message += part.encode("utf-8")
    key = b"oncekey-no-secret" if secret_hex is None else bytes.fromhex(secret_hex)
    return hmac.new(key, message, hashlib.sha256).digest()


def written(value: Any) -> str:
    """Params as plain JSON, as the page says."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(map(escaped, value)) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    names = sorted(value, key=lambda name: [ord(letter) for letter in name])
    return "{" + ",".join(written(name) + ":" + written(value[name]) for name in names) + "}"


def escaped(letter: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r"}
    short["\t"] = "\\t"
    if letter in short:
        return short[letter]
    if " " <= letter <= "~":
        return letter
    units = struct.unpack(f">{len(letter.encode('utf-16-be')) // 2}H", letter.encode("utf-16-be"))
    return "".join(f"\\u{unit:04x}" for unit in units)


def child_of(case: dict[str, Any], label: str) -> bytes:
    parts = [case["scope"], case["operation"], case["key"], case["step"]]
    return derive(label, parts, case["secret_hex"])


# --- every vector -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", CHILDREN, ids=lambda case: case["about"])
def test_child_keys_equal_the_vectors(case: dict[str, Any]) -> None:
    digest = child_of(case, "oncekey-child-v1")
    assert case["child_key"] == "ok1-" + digest.hex()[:40]
    assert len(case["child_key"]) == 44


@pytest.mark.parametrize("case", CHILDREN, ids=lambda case: case["about"])
def test_child_uuids_equal_the_vectors(case: dict[str, Any]) -> None:
    high, low = struct.unpack(">QQ", child_of(case, "oncekey-child-uuid-v1")[:16])
    high = high & ~0xF000 | 0x8000
    low = low & ~(0xC000 << 48) | (0x8000 << 48)
    digits = f"{high:016x}{low:016x}"
    cut = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]
    assert case["child_uuid"] == "-".join(cut)
    assert re.fullmatch(r"[0-9a-f-]{14}8[0-9a-f]{3}-[89ab][0-9a-f-]{16}", case["child_uuid"])


@pytest.mark.parametrize("case", DERIVED, ids=lambda case: case["about"])
def test_keys_of_key_for_equal_the_vectors(case: dict[str, Any]) -> None:
    assert case["params_canonical"] == written(case["params"])
    namespace, occurrence = case["namespace"], case["occurrence"]
    parts = [
        namespace or "",
        case["operation"],
        written(case["params"]),
        "" if occurrence is None else str(occurrence),
    ]
    made = "kf1-" + derive("oncekey-key-for-v1", parts, case["secret_hex"]).hex()[:40]
    assert case["key"] == (made if namespace is None else f"{namespace}:{made}")
    assert len(case["key"]) <= 61


# --- the file ---------------------------------------------------------------------------------


def test_the_vector_file_is_what_the_library_writes() -> None:
    assert FILE.read_text(encoding="ascii") == text(), "python -m tests.core.child_key_vectors"


def test_no_two_vectors_have_the_same_key() -> None:
    assert len({case["child_key"] for case in CHILDREN}) == len(CHILDREN)
    assert len({case["child_uuid"] for case in CHILDREN}) == len(CHILDREN)
    meant = [
        (c["namespace"], c["operation"], written(c["params"]), str(c["occurrence"]))
        for c in DERIVED
    ]
    keys = {case["key"] for case in DERIVED}
    assert len(set(meant)) == len(keys) < len(DERIVED), "some are the same on purpose"


def test_the_vectors_contain_the_hard_cases() -> None:
    parts = ["scope", "operation", "key", "step"]
    assert any(not case["scope"] and not case["operation"] for case in CHILDREN)
    longest = [max(len(case[part]) for case in CHILDREN) for part in parts]
    assert longest == [255, 100, 255, 100]
    sizes = [max(len(case[part].encode()) for case in CHILDREN) for part in parts]
    assert sizes == [1_020, 400, 1_020, 400]
    secrets = {len(case["secret_hex"] or "") // 2 for case in CHILDREN}
    assert secrets == {0, 16, 32, 64}


# --- the page's JavaScript --------------------------------------------------------------------

_CHECK = """
import { readFileSync } from "node:fs";
const { child_keys } = JSON.parse(readFileSync(process.argv[2], "utf8"));
for (const v of child_keys) {
  const secret = v.secret_hex === null ? undefined : Buffer.from(v.secret_hex, "hex");
  const parts = [v.scope, v.operation, v.key, v.step, secret];
  console.log(childKey(...parts) + " " + childUuid(...parts));
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_the_javascript_of_the_page_makes_every_child_key(tmp_path: Path) -> None:
    blocks = re.findall(r"^```javascript\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    script = tmp_path / "page.mjs"
    script.write_text("\n".join([*blocks, _CHECK]), encoding="utf-8")
    done = subprocess.run(
        ["node", str(script), str(FILE)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    expected = [f"{case['child_key']} {case['child_uuid']}" for case in CHILDREN]
    assert done.stdout.splitlines() == expected
