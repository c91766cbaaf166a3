"""The command `oncekey doctor`: its output, its data and its exit codes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.conftest import Command

from oncekey import Once, Policy
from oncekey.cli.output import ExitCode
from oncekey.stores.sqlite import durability, mounts
from oncekey.stores.sqlite.mounts import FileSystem

APP = """
from pathlib import Path
from starlette.applications import Starlette
from starlette.routing import Route
from oncekey import AsyncOnce
from oncekey.http.asgi import IdempotencyMiddleware

async def charge(request): ...

app = Starlette(routes=[Route("/charges", charge, methods=["POST"])])
app.add_middleware(
    IdempotencyMiddleware, once=AsyncOnce(f"sqlite:///{Path.cwd()}/keys.db"), caller=CALLER
)
"""
FINDING = {"check", "severity", "what", "why", "mend"}


@pytest.fixture
def good(charged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store without faults, whatever library of SQLite and whatever disk the tests have."""
    monkeypatch.setattr(durability, "has_wal_reset_bug", lambda *version: False)
    monkeypatch.setattr(mounts, "read_file_system", lambda path: FileSystem("ext4", "/"))
    os.chmod(tmp_path / "keys.db", 0o600)
    return charged


def test_a_good_store_is_reported_and_exits_with_0(here: Command, good: str) -> None:
    ran = here("doctor", good)
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    groups = [line for line in ran.out.splitlines() if line and not line.startswith(" ")]
    assert groups[:-1] == ["SQLite", "Store", "App", "Proxy"]
    assert groups[-1].startswith("nothing wrong: ")
    assert "  ok       synchronous   synchronous=full\n" in ran.out
    assert "why: " not in ran.out
    assert "why: below `full` a loss of power" in here("doctor", good, "--all").out


def test_what_is_broken_is_explained_and_exits_with_4(here: Command, good: str) -> None:
    ran = here("doctor", f"{good}?synchronous=off")
    assert (ran.code, ran.err) == (ExitCode.UNHEALTHY, "")
    after = ran.out.partition("broken   synchronous")[2].splitlines()
    assert "synchronous=off: the guarantee is best effort" in after[0]
    assert after[1].strip().startswith("why: below `full` a loss of power")
    assert after[2].strip().startswith("mend: remove synchronous= from the URL")
    assert "2 broken, 0 to look at" in ran.out.splitlines()[-1]


def test_warnings_exit_with_4_only_if_strict(here: Command, good: str, tmp_path: Path) -> None:
    with Once(good, policy=Policy(keep="1h")) as once:
        once.run("export", "1", lambda attempt: None)
    for arguments in ((), ("--json",)):
        assert here("doctor", good, *arguments).code == ExitCode.OK
        assert here("doctor", good, "--strict", *arguments).code == ExitCode.UNHEALTHY
    assert "'export' keeps 1h" in here("doctor", good).out
    assert here("doctor", good, "--strict", "--retry-horizon", "30m").code == ExitCode.OK


def test_json_has_a_stable_form(here: Command, good: str) -> None:
    data = here("doctor", f"{good}?synchronous=normal", "--json").data
    assert data.keys() == {"store", "healthy", "format", "worst", "counts", "findings"}
    assert (data["format"], data["healthy"], data["worst"]) == (1, False, "broken")
    assert data["counts"].keys() == {"ok", "info", "warning", "broken"}
    assert sum(data["counts"].values()) == len(data["findings"])
    assert all(finding.keys() == FINDING for finding in data["findings"])
    bad = {f["check"]: f["mend"] for f in data["findings"] if f["severity"] == "broken"}
    assert bad.keys() == {"sqlite.synchronous", "store.guarantee"}
    assert all(bad.values())
    assert here("doctor", good, "--json").data["healthy"] is True


def test_an_app_and_a_proxy_are_checked_on_request(
    oncekey: Command, good: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP.replace("CALLER", "lambda scope: 'acct_1'"))
    (tmp_path / "nginx.conf").write_text("proxy_next_upstream error non_idempotent;")
    ran = oncekey("doctor", good, "--app", "shop:app", "--proxy-config", "nginx.conf", "--json")
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    severities = {finding["check"]: finding["severity"] for finding in ran.data["findings"]}
    assert severities["app.scope"] == severities["proxy.retries"] == "warning"
    assert severities["app.store"] == severities["app.guards"] == "ok"


DJANGO = """
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application

settings.configure(
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["oncekey.http.django.IdempotencyMiddleware"],
    ONCEKEY={
        "once": "sqlite:///keys.db",
        "caller": lambda request: request.headers.get("x-account"),
        "rules": [{"path": "/charges", "keep": "2h"}],
    },
)
urlpatterns = []
django.setup()
app = get_wsgi_application()
"""


def test_the_store_is_checked_before_the_app_is_imported(
    oncekey: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This app makes its store when it is imported, which must not hide that it was missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(DJANGO)
    ran = oncekey("doctor", "sqlite:///keys.db", "--app", "shop:app", "--json")
    assert (ran.code, ran.err) == (ExitCode.UNHEALTHY, "")
    severities = {finding["check"]: finding["severity"] for finding in ran.data["findings"]}
    assert severities["sqlite.file"] == "broken"
    assert (tmp_path / "keys.db").exists()
    assert severities["app.store"] == severities["app.scope"] == "ok"
    assert severities["app.keep"] == "warning"
    assert severities["app.unguarded-routes"] == "info", "Django does not tell its methods"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("memory://",), "lives and ends within one process"),
        (("nonsense://x",), "no store for nonsense://"),
        (("sqlite:///keys.db", "--app", "shop"), "is not MODULE:NAME"),
        (("sqlite:///keys.db", "--app", "no_such_module:app"), "cannot be imported"),
        (("sqlite:///keys.db", "--retry-horizon", "soon"), "is not a duration"),
        (("sqlite:///keys.db?synchronous=sometimes",), "is not known"),
    ],
)
def test_wrong_usage_exits_with_2(here: Command, arguments: tuple[str, ...], said: str) -> None:
    ran = here("doctor", *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert said in ran.err


def test_a_server_that_is_down_exits_with_1_and_hides_the_password(here: Command) -> None:
    ran = here("doctor", "postgresql://app:hunter22@127.0.0.1:1/shop", "--json")
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert "hunter22" not in ran.err
    assert "127.0.0.1" in ran.err


def test_doctor_makes_no_store(here: Command, tmp_path: Path) -> None:
    ran = here("doctor", f"sqlite:///{tmp_path}/none.db")
    assert ran.code == ExitCode.UNHEALTHY
    assert "is no file" in ran.out
    assert list(tmp_path.iterdir()) == []
