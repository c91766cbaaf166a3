"""The commands on a store: their output, stdout or stderr, and their exit codes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click
import pytest

from oncekey import Attempt, ConfigurationError, Once, Policy, __version__
from oncekey.cli.command_group import cli
from oncekey.cli.output import ExitCode
from oncekey.engine import store_urls
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from tests.cli.conftest import Command, Ran

DAY_US = 86_400_000_000
SECRET = "correct horse battery"
OTHER_SECRET = "wrong donkey capacitor"


def assert_refused(ran: Ran, code: ExitCode, *words: str) -> None:
    """One line on stderr that says why, nothing on stdout, no traceback."""
    assert ran.code == code
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("oncekey: ")
    for word in words:
        assert word in ran.err


# --- the command itself ----------------------------------------------------------------------


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_has_help_with_an_example(here: Command, name: str) -> None:
    ran = here(name, "--help")
    assert ran.code == ExitCode.OK
    assert "Example" in ran.out
    assert f"oncekey {name}" in ran.out
    assert "--json" in ran.out


def test_without_arguments_it_lists_the_commands(here: Command) -> None:
    ran = here()
    assert ran.code == ExitCode.OK
    assert "sweep" in ran.out
    assert "Exit codes" in ran.out


def test_a_mistyped_command_is_named_with_a_guess(here: Command) -> None:
    assert_refused(here("swep"), ExitCode.USAGE, "swep", "sweep", "--help")


@pytest.mark.parametrize(
    "arguments",
    [("sweep",), ("sweep", "sqlite:///a.db", "--limit", "0"), ("show", "sqlite:///a.db", "x")],
)
def test_a_usage_error_is_one_line(here: Command, arguments: tuple[str, ...]) -> None:
    assert_refused(here(*arguments), ExitCode.USAGE, f"oncekey {arguments[0]} --help")


def test_version_prints_the_versions(here: Command) -> None:
    assert here("version", "--json").data["oncekey"] == __version__
    assert __version__ in here("version").out
    assert __version__ in here("--version").out


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_the_command_without_its_extra_says_what_to_install(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from oncekey.cli.main import main; sys.exit(main(['version']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == ExitCode.USAGE
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert 'pip install "oncekey[cli]"' in done.stderr


def test_python_m_oncekey_is_the_command(here: Command) -> None:
    command = [sys.executable, "-m", "oncekey", "version", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    assert done.stdout == here("version", "--json").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_how_to_install_it(here: Command, shell: str) -> None:
    ran = here("completion", shell)
    assert ran.code == ExitCode.OK
    assert ran.out.startswith("# To install: ")
    assert f"_ONCEKEY_COMPLETE={shell}_complete" in ran.out
    assert here("completion", shell, "--json").data["script"] in ran.out


@pytest.mark.parametrize(
    ("words", "found"), [("oncekey res", "resolve"), ("oncekey list --state un", "unknown")]
)
def test_the_shell_completes_commands_and_states(
    here: Command, capfd: pytest.CaptureFixture[str], words: str, found: str
) -> None:
    asked = {"_ONCEKEY_COMPLETE": "bash_complete", "COMP_CWORD": str(words.count(" "))}
    with pytest.raises(SystemExit, match="0"):
        here(COMP_WORDS=words, **asked)
    assert capfd.readouterr().out == f"plain,{found}\n"


# --- URLs --------------------------------------------------------------------------------------

READS = [
    ("sweep",),
    ("show", "charge", "k"),
    ("list",),
    ("stats",),
    ("release", "--tag", "1", "--by", "ana", "--why", "why", "--yes"),
]
ON_A_STORE = [*READS, ("migrate",)]


@pytest.mark.parametrize("command", ON_A_STORE)
@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ("payments.db", "not a store URL"),
        ("carrier-pigeon://roof", "no store for carrier-pigeon"),
        ("sqlite:///", "names no file"),
        ("memory://", "one process"),
    ],
)
def test_a_bad_url_is_refused(here: Command, command: tuple[str, ...], bad: str, word: str) -> None:
    name, *rest = command
    assert_refused(here(name, bad, *rest), ExitCode.USAGE, word)


def test_a_password_in_a_url_is_not_repeated(here: Command) -> None:
    for url in (
        "db://bob:hunt#er2@host/x",
        "db:/bob:hunt#er2@host",
        "sqlite:///x?password=hunt#er2",
    ):
        ran = here("migrate", url, "extra")
        assert ran.code == ExitCode.USAGE
        assert "hunt" not in ran.err + here("sweep", url).err + here("migrate", url).err


@pytest.mark.parametrize("command", READS)
class TestInspectsBeforeItOpens:
    def test_a_missing_file_is_not_created(
        self, here: Command, command: tuple[str, ...], url: str, tmp_path: Path
    ) -> None:
        name, *rest = command
        assert_refused(here(name, url, *rest), ExitCode.USAGE, "no such file", "keys.db")
        assert list(tmp_path.iterdir()) == []

    def test_another_applications_file_is_left_alone(
        self, here: Command, command: tuple[str, ...], url: str, tmp_path: Path
    ) -> None:
        with closing(sqlite3.connect(tmp_path / "keys.db")) as theirs:
            theirs.execute("CREATE TABLE orders (id)")
        before = (tmp_path / "keys.db").read_bytes()
        name, *rest = command
        assert_refused(here(name, url, *rest), ExitCode.USAGE, "not an oncekey store")
        assert (tmp_path / "keys.db").read_bytes() == before

    def test_a_file_that_is_no_database_is_refused(
        self, here: Command, command: tuple[str, ...], url: str, tmp_path: Path
    ) -> None:
        (tmp_path / "keys.db").write_text("Dear diary,\n" * 100)
        name, *rest = command
        assert_refused(here(name, url, *rest), ExitCode.USAGE, "not an SQLite database")

    def test_a_folder_is_refused(
        self, here: Command, command: tuple[str, ...], tmp_path: Path
    ) -> None:
        name, *rest = command
        assert_refused(here(name, f"sqlite:///{tmp_path}", *rest), ExitCode.USAGE, "folder")


@pytest.mark.parametrize("command", READS)
def test_show_does_not_migrate_an_older_schema(
    here: Command, command: tuple[str, ...], charged: str, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "keys.db")) as file, file:
        file.execute("DELETE FROM oncekey_migrations")
    name, *rest = command
    assert_refused(here(name, charged, *rest), ExitCode.USAGE, "older release", "oncekey migrate")


def test_show_refuses_a_newer_schema(here: Command, charged: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "keys.db")) as file, file:
        file.execute("INSERT INTO oncekey_migrations VALUES (99, 'later', 0)")
    for name, *rest in ON_A_STORE:
        assert_refused(here(name, charged, *rest), ExitCode.USAGE, "keys.db", "schema 99")


def test_a_third_party_store_may_lack_inspect_and_migrate(
    here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("other_store")
    vars(module)["open_blocking"] = lambda url: MemoryStore()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(store_urls.BUILT_IN, "other", module.__name__)
    assert here("sweep", "other://x", "--json").data["removed"] == 0
    assert here("show", "other://x", "charge", "k").code == ExitCode.NOT_FOUND
    assert_refused(here("migrate", "other://x"), ExitCode.USAGE, "other://", "migrate")
    assert_refused(here("migrate", "other://x", "--sql"), ExitCode.USAGE, "migration_script")


# --- show --------------------------------------------------------------------------------------


def test_show_a_key_that_succeeded(here: Command, charged: str) -> None:
    ran = here("show", charged, "charge", "order-1", "--json", "--bodies")
    assert ran.code == ExitCode.OK
    assert ran.err == ""
    assert ran.data["found"] is True
    assert ran.data["state"] == "succeeded"
    assert ran.data["value"] == {"id": "ch_1"}
    assert '{"id": "ch_1"}' in here("show", charged, "charge", "order-1", "--bodies").out


def test_show_finds_keys_by_scope(here: Command, charged: str) -> None:
    ran = here("show", charged, "charge", "order-1", "--scope", "acct_1", "--json", "--bodies")
    assert ran.data["value"] == {"id": "ch_2"}


def test_show_escapes_control_characters(here: Command, charged: str) -> None:
    ran = here("show", charged, "charge", "order-2")
    assert "failed" in ran.out
    assert "card declined \\x1b[2J" in ran.out
    assert "\x1b" not in ran.out


def test_show_of_an_absent_key_has_its_own_exit_code(here: Command, charged: str) -> None:
    assert here("show", charged, "charge", "order-9").code == ExitCode.NOT_FOUND
    ran = here("show", charged, "charge", "order-9", "--json")
    assert ran.code == ExitCode.NOT_FOUND
    assert ran.data["found"] is False


def test_show_prints_steps_and_past_generations(here: Command, url: str, tmp_path: Path) -> None:
    def checkout(attempt: Attempt) -> str:
        attempt.step("pay", lambda key: {"id": "ch_1", "status": "paid"})
        attempt.step("mail", lambda key: "x" * 1_000)
        with pytest.raises(ZeroDivisionError):
            attempt.step("ship", lambda key: 1 // 0)
        return "ä"

    yesterday = time.time_ns() // 1_000 - DAY_US
    store = SQLiteStore(tmp_path / "keys.db", clock=lambda: yesterday)
    with Once(store, policy=Policy(keep="1h")) as once:
        once.run("checkout", "cart", checkout)
    with Once(url) as once:
        once.run("checkout", "cart", lambda attempt: "again")
    look = ("show", url, "checkout", "cart", "--history", "--bodies")
    then = here(*look, "--json").data["history"][0]
    pay, mail, ship = then["steps"]
    assert (pay["done"], pay["value"]) == (True, {"id": "ch_1", "status": "paid"})
    assert mail["value"] == "x" * 1_000
    assert (ship["done"], ship["value"], ship["intent"][:4]) == (False, None, "ok1-")
    assert ship["quoted_intent"] == f'"{ship["intent"]}"', "as a client that quotes keys sends it"
    assert (pay["intent"], pay["quoted_intent"]) == (None, None)
    text = here(*look).out
    assert text.index('"again"') < text.index("past generation")
    assert '"ä"' in text
    assert '{"id": "ch_1", "status": "paid"}' in text
    assert "x" * 301 not in text
    assert f"sent with the key {ship['intent']}" in text


def test_show_refuses_an_impossible_key(here: Command, charged: str) -> None:
    assert_refused(here("show", charged, "charge", ""), ExitCode.USAGE, "0 characters")


def test_show_takes_the_secret_from_the_environment(here: Command, url: str) -> None:
    with Once(url, secret=SECRET) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    look = ("show", url, "charge", "order-1", "--bodies")
    right = here(*look, "--secret-env", "ONCE_SECRET", "--json", ONCE_SECRET=SECRET)
    assert right.data["value"] == "paid"
    wrong = here(*look, "--secret-env", "ONCE_SECRET", ONCE_SECRET=OTHER_SECRET)
    assert_refused(wrong, ExitCode.USAGE, "another secret", "--secret-env")
    assert_refused(here(*look), ExitCode.USAGE, "another secret", "--secret-env")
    assert_refused(here(*look, "--secret-env", "NOT_SET"), ExitCode.USAGE, "NOT_SET", "not set")
    short = here(*look, "--secret-env", "ONCE_SECRET", ONCE_SECRET="hunter2")
    assert_refused(short, ExitCode.USAGE, "16 to 64 bytes")
    for ran in (right, wrong, short):
        for secret in (SECRET, OTHER_SECRET, "hunter2"):
            assert secret not in ran.out + ran.err


# --- sweep -------------------------------------------------------------------------------------


def test_sweep_runs_until_nothing_is_left(here: Command, ended: str) -> None:
    ran = here("sweep", ended, "--limit", "2", "--json")
    assert ran.code == ExitCode.OK
    assert (ran.data["removed"], ran.data["batches"]) == (5, 3)
    assert here("sweep", ended, "--json").data["removed"] == 0
    assert here("show", ended, "charge", "new").code == ExitCode.OK
    assert here("show", ended, "charge", "old-1").code == ExitCode.NOT_FOUND


def test_sweep_once_removes_one_batch(here: Command, ended: str) -> None:
    assert here("sweep", ended, "--limit", "2", "--once", "--json").data["removed"] == 2
    assert "3 records removed" in here("sweep", ended).out


def test_sweep_needs_no_secret(here: Command, url: str) -> None:
    with Once(url, secret=SECRET) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    assert here("sweep", url, "--json").data["removed"] == 0


# --- migrate -----------------------------------------------------------------------------------


def test_migrate_makes_a_store_and_then_changes_nothing(here: Command, url: str) -> None:
    first = here("migrate", url, "--json")
    assert first.code == ExitCode.OK
    assert first.err == ""
    assert first.data["version"] == len(first.data["applied"]) > 0
    assert first.data["guarantee"] == "transactional"
    assert first.data["clock"] == "host"
    again = here("migrate", url, "--json").data
    assert again["applied"] == []
    assert again["version"] == first.data["version"]
    assert "up to date" in here("migrate", url).out


def test_show_of_a_new_store_does_not_bind_its_secret(here: Command, url: str) -> None:
    """Whoever binds a store first decides its secret, and that must be the application."""
    here("migrate", url)
    assert here("show", url, "charge", "order-1").code == ExitCode.NOT_FOUND
    assert here("sweep", url).code == ExitCode.OK
    Once(url, secret=SECRET).close()
    with pytest.raises(ConfigurationError, match="another secret"):
        Once(url)


def test_migrate_sql_is_refused_for_sqlite(here: Command, url: str, tmp_path: Path) -> None:
    assert_refused(here("migrate", url, "--sql"), ExitCode.USAGE, "twice", "oncekey migrate")
    assert list(tmp_path.iterdir()) == []


def test_migrate_says_why_it_failed(here: Command, tmp_path: Path) -> None:
    ran = here("migrate", f"sqlite:///{tmp_path}/no/such/folder/keys.db")
    assert_refused(ran, ExitCode.USAGE, "directory exists")
