"""A reader of the dashboard without a browser: signs in, follows forms, sends what a test wants."""

from __future__ import annotations

import html
import re
from types import TracebackType
from typing import Any, Self

import httpx
from tests.dashboard.served_dashboard import PATIENCE_SECONDS, TOKEN

_FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)"')
_CARRIED = re.compile(r'<textarea name="(\w+)" hidden>\n(.*?)</textarea>', re.S)


class Reader:
    """One browser, as the server sees it."""

    def __init__(self, address: str) -> None:
        self.http = httpx.Client(base_url=address, timeout=PATIENCE_SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()

    def sign_in(self, token: str = TOKEN) -> httpx.Response:
        return self.http.post("/sign-in", data={"token": token})

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        return self.http.post(path, data=fields, headers=headers)

    def form(self, id: str, **typed: str) -> dict[str, str]:
        """The fields of a key's form, with what was typed."""
        page = self.get(f"/keys/{id}").text
        decide = page.partition("/confirm")[2]
        return {**_fields(decide), **typed}

    def confirmed(self, id: str, **typed: str) -> httpx.Response:
        """Sends a key's form and then the form of the confirmation."""
        page = self.post(f"/keys/{id}/confirm", self.form(id, **typed))
        assert page.status_code == 200, page.text
        return self.post(f"/keys/{id}/decide", confirmation(page.text))


def confirmation(page: str) -> dict[str, str]:
    """The fields of the form on the confirmation."""
    form = page.partition("/decide")[2]
    carried = {name: html.unescape(value) for name, value in _CARRIED.findall(form)}
    return {**carried, **_fields(form)}


def _fields(form: str) -> dict[str, str]:
    return {name: html.unescape(value) for name, value in _FIELD.findall(form)}
