"""The first minute of the README: its app is served, and its curl line is sent twice."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.docs.pages import ROOT, blocks

README = ROOT / "README.md"
LINES_MAX = 8


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The app of the README, served by uvicorn on a port of its own."""
    (tmp_path / "app.py").write_text(blocks(README, "python")[0])
    log = tmp_path / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=file,
            stderr=file,
        )
    try:
        yield _announced(log, server)
    finally:
        server.terminate()
        server.wait(timeout=60)


def _announced(log: Path, server: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + 120
    while time.monotonic() < until and server.poll() is None:
        for word in log.read_text().split():
            if word.startswith("http://127.0.0.1:"):
                return word
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def _curl(address: str) -> httpx.Response:
    """What the README's curl line would get from this server."""
    (line,) = [line for line in "".join(blocks(README, "sh")).splitlines() if "curl" in line]
    words = shlex.split(line)
    url = urlsplit(next(word for word in words if word.startswith("http")))
    headers = dict(words[i + 1].split(": ", 1) for i, word in enumerate(words) if word == "-H")
    method = words[words.index("-X") + 1]
    return httpx.request(method, f"{address}{url.path}?{url.query}", headers=headers, timeout=60)


def test_the_app_of_the_readme_fits_into_eight_lines() -> None:
    lines = [line for line in blocks(README, "python")[0].splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX


def test_the_second_curl_of_the_readme_is_a_replay(address: str) -> None:
    first, second = _curl(address), _curl(address)
    assert first.content == second.content
    assert "x-idempotency-replayed" not in first.headers

    (shown,) = blocks(README, "http")
    head, _, body = shown.partition("\n\n")
    status, *headers = head.splitlines()
    assert status == f"HTTP/1.1 {second.status_code} {second.reason_phrase}"
    for header in headers:
        name, _, value = header.partition(": ")
        assert name in second.headers
        assert name == "x-idempotency-retention" or second.headers[name] == value
    assert len(body.strip()) == len(second.text), "the same fields, another random id"
