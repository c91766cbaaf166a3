"""Missing packages, clashing packages and misnamed options: the message says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from oncekey import AsyncOnce, ConfigurationError
from oncekey.http import fastapi as for_fastapi
from oncekey.http import flask as for_flask

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


def _said(code: str, *path: Path) -> str:
    found = os.pathsep.join(map(str, [*path, ROOT / "src"]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": found},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
def test_missing_package_is_told_with_its_pip_line(module: str, package: str, extra: str) -> None:
    said = _said(BLOCKED.format(package=package, module=module))
    assert f"need {package}" in said
    assert f"pip install 'oncekey[{extra}]'" in said


def test_old_python_multipart_under_the_same_name_is_told(tmp_path: Path) -> None:
    package = tmp_path / "multipart"
    package.mkdir()
    (package / "__init__.py").write_text("class MultipartParser: pass\n")
    said = _said(BLOCKED.format(package="nothing", module="asgi"), tmp_path)
    assert "python-multipart" in said
    assert "pip install 'python-multipart>=0.0.18' 'oncekey[http]'" in said


@pytest.mark.parametrize(
    ("given", "meant"), [("ttl", "keep"), ("expires", "keep"), ("ignores", "ignore")]
)
def test_unknown_option_of_a_guard_names_the_one_meant(given: str, meant: str) -> None:
    once = AsyncOnce("memory://")
    idempotency = for_fastapi.Idempotency(once, caller=lambda request: "me")
    idempotency.attach(FastAPI())
    options: dict[str, Any] = {given: "1h"}
    for guard in (idempotency.guard, idempotency.route, for_flask.idempotent):
        with pytest.raises(
            ConfigurationError, match=f"unknown option {given}: did you mean {meant}="
        ):
            guard(**options)
    with pytest.raises(ConfigurationError, match=r"unknown option frobnicate\. Known are methods,"):
        for_flask.idempotent(frobnicate=1)  # type: ignore[call-arg]
