"""password_redaction.py removes passwords wherever they occur, and little else."""

from __future__ import annotations

import pytest

from oncekey.cli import password_redaction
from oncekey.cli.password_redaction import redact_remembered, redact_url, remember_passwords


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_redaction, "_known", set())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://bob:secret@host/db", "postgresql://bob:***@host/db"),
        ("postgresql://bob:se:c/r@et@host/db", "postgresql://bob:***@host/db"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("at postgresql://bob:secret@host/db: no", "at postgresql://bob:***@host/db: no"),
        ("postgresql://host/db?password=secret&x=1", "postgresql://host/db?password=***&x=1"),
        ("postgresql://h/db?x=1&sslpassword=secret", "postgresql://h/db?x=1&sslpassword=***"),
        ("postgresql://h/db?scram_client_key=abc", "postgresql://h/db?scram_client_key=***"),
        ("'host=db password=secret dbname=x'", "'host=db password=*** dbname=x'"),
        (r"host=db password = 'se cr\' et' x=1", "host=db password = *** x=1"),
        ("password=secret", "password=***"),
        ("postgresql://bob@host:5432/db?schema=a", "postgresql://bob@host:5432/db?schema=a"),
        ("sqlite:///payments.db", "sqlite:///payments.db"),
        ("check user, password and pg_hba.conf", "check user, password and pg_hba.conf"),
    ],
)
def test_redact_url_removes_what_looks_like_a_password(text: str, shown: str) -> None:
    assert redact_url(text) == shown
    assert redact_remembered(text) == shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://bob:100%zz@host/x", 'invalid percent-encoded token: "100%zz"'),
        ("postgresql://bob:sec ret@host/x", 'unexpected spaces found in "sec ret", use %20'),
        ("postgresql://bob:p%40ssword@host/x", "no user with password p@ssword"),
        ("postgresql://bob@host/x?password=open%20up", "tried (open up) and (open%20up)"),
    ],
)
def test_a_remembered_password_is_removed_from_any_text(url: str, said: str) -> None:
    remember_passwords(["migrate", url, "--json"])
    assert password_redaction.HIDDEN in redact_remembered(said)
    for password in ("100%zz", "sec ret", "p@ssword", "open up", "open%20up"):
        assert password not in redact_remembered(said)


def test_a_password_that_is_a_common_word_is_removed_as_a_whole_word_only() -> None:
    remember_passwords(["postgresql://postgres:postgres@host/db"])
    assert (
        redact_url("postgresql://postgres:postgres@host/db") == "postgresql://postgres:***@host/db"
    )
    assert redact_remembered("is not a postgresql:// URL") == "is not a postgresql:// URL"
    remember_passwords(["postgresql://bob:a@host/db"])
    assert redact_remembered("a table") == "a table"
