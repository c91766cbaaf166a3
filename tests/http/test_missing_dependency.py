"""Missing or clashing packages and unknown options are reported with what to do about them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from oncekey import AsyncOnce, ConfigurationError
from oncekey.http import fastapi as oncekey_fastapi
from oncekey.http import flask as oncekey_flask

ROOT = Path(__file__).parents[2]
BLOCKED = """
import sys
sys.modules[{package!r}] = None
try:
    import oncekey.http.{module}
except Exception as error:
    from oncekey import ConfigurationError
    assert isinstance(error, ConfigurationError), type(error)
    assert isinstance(error, ModuleNotFoundError), type(error)
    print(error)
"""


def _output_of(code: str, *path: Path) -> str:
    python_path = os.pathsep.join(map(str, [*path, ROOT / "src"]))
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("asgi", "http_sf", "http"),
        ("asgi", "rfc8785", "http"),
        ("wsgi", "multipart", "http"),
        ("fastapi", "fastapi", "fastapi"),
        ("flask", "flask", "flask"),
        ("django", "django", "django"),
    ],
)
def test_missing_package_is_reported_with_its_pip_line(
    module: str, package: str, extra: str
) -> None:
    output = _output_of(BLOCKED.format(package=package, module=module))
    assert f"needs {package}" in output
    assert f"pip install 'oncekey[{extra}]'" in output


def test_python_multipart_in_place_of_multipart_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "multipart"
    package.mkdir()
    (package / "__init__.py").write_text("class MultipartParser: pass\n")
    output = _output_of(BLOCKED.format(package="nothing", module="asgi"), tmp_path)
    assert "python-multipart" in output
    assert "pip install 'python-multipart>=0.0.18' 'oncekey[http]'" in output


@pytest.mark.parametrize(
    ("name", "suggested"), [("ttl", "keep"), ("expires", "keep"), ("ignores", "ignore")]
)
def test_unknown_option_of_a_guard_suggests_a_known_one(name: str, suggested: str) -> None:
    once = AsyncOnce("memory://")
    idempotency = oncekey_fastapi.Idempotency(once, caller=lambda request: "me")
    idempotency.attach(FastAPI())
    options: dict[str, Any] = {name: "1h"}
    for guard in (idempotency.guard, idempotency.route, oncekey_flask.idempotent):
        with pytest.raises(
            ConfigurationError, match=f"unknown option {name}: did you mean {suggested}="
        ):
            guard(**options)
    with pytest.raises(ConfigurationError, match=r"unknown option frobnicate\. Known are methods,"):
        oncekey_flask.idempotent(frobnicate=1)  # type: ignore[call-arg]
