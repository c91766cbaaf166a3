"""The REST framework's authentication; in a module of its own, because settings name it."""

from __future__ import annotations

from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from tests.http.wsgi_apps import handlers


class Account:
    is_authenticated = True


class Tokens(BaseAuthentication):  # type: ignore[misc]
    def authenticate(self, request: Any) -> Any:
        sent = request.META.get("HTTP_AUTHORIZATION", "")
        if sent not in handlers.CALLERS:
            raise AuthenticationFailed("who are you?")
        return Account(), sent

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"
