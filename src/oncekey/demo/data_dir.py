"""The demo's data directory: its files, its accounts and its secrets.

The secrets are random when the directory is new, and kept in a file that only its owner can read.
A directory that is used again has the same accounts and tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from oncekey.demo import DemoFailed

_FILE = "accounts.json"
_NAMES = ("Ada", "Grace", "Scenarios")


@dataclass(frozen=True, slots=True)
class Account:
    id: str
    name: str
    token: str


class DataDir:
    """The files and accounts in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = _load(folder / _FILE)
        self.accounts: tuple[Account, ...] = tuple(Account(**one) for one in kept["accounts"])
        self.provider_secret: str = kept["provider"]
        # Looked up by digest, so that the time of a lookup reveals nothing about a token.
        self._by_token = {_digest(account.token): account for account in self.accounts}

    @property
    def people(self) -> tuple[Account, ...]:
        """The accounts to try by hand; the last account belongs to the scenarios."""
        return self.accounts[:-1]

    @property
    def scenario_account(self) -> Account:
        return self.accounts[-1]

    @property
    def payments(self) -> Path:
        return self.folder / "payments.db"

    @property
    def naive_payments(self) -> Path:
        return self.folder / "naive.db"

    @property
    def provider(self) -> Path:
        return self.folder / "provider.db"

    @property
    def queue(self) -> Path:
        return self.folder / "queue.db"

    @property
    def store_url(self) -> str:
        """The default store of the keys."""
        return f"sqlite:///{quote(str(self.folder / 'oncekey.db'))}"

    def account_of(self, authorization: bytes) -> Account | None:
        """The account whose token an Authorization header carries."""
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        return self._by_token.get(_digest(token.strip().decode("latin-1")))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _load(file: Path) -> dict[str, Any]:
    try:
        if not file.exists():
            _create(file)
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if len(kept["accounts"]) == len(_NAMES) and kept["provider"]:
            return kept
    except OSError as error:
        raise DemoFailed(f"{file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        pass
    raise DemoFailed(f"{file} is not one of the demo's; take another folder, or remove the file")


def _create(file: Path) -> None:
    accounts = [
        Account(f"acct_{name.lower()}_{secrets.token_hex(3)}", name, f"tok_{secrets.token_hex(16)}")
        for name in _NAMES
    ]
    kept = {"accounts": [asdict(one) for one in accounts], "provider": secrets.token_hex(16)}
    made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(made, "w", encoding="utf-8") as out:
        json.dump(kept, out, indent=2)
