"""The API's own error responses: RFC 9457 problem details, as oncekey's are."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from oncekey import OncekeyError
from oncekey.demo.api.provider_client import ProviderFailure

MEDIA_TYPE = "application/problem+json"
_ERRORS_MAX = 10


class Refused(Exception):
    """The request was understood and is refused."""

    def __init__(self, status: int, name: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail


def problem_response(
    status: int, name: str, detail: str, headers: dict[str, str] | None = None, **more: Any
) -> JSONResponse:
    body = {
        "type": f"urn:oncekey:demo:{name}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": name,
        **more,
    }
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Turns every error of the app into problem details."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        challenge = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
        return problem_response(error.status, error.name, error.detail, challenge)

    @app.exception_handler(ProviderFailure)
    async def provider_failed(request: Request, error: ProviderFailure) -> JSONResponse:
        # A retry-safe route does not store a 502: the key is free, and a retry asks again.
        return problem_response(
            502, "provider-trouble", f"{error}; retry with the same key", retryable=True
        )

    @app.exception_handler(OncekeyError)
    async def unrecorded(request: Request, error: OncekeyError) -> JSONResponse:
        """A step could not be recorded: the store is down, or this attempt was overtaken."""
        later = {"Retry-After": "1"}
        return problem_response(
            503, "not-recorded", "Retry with the same key.", later, retryable=True
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # What was sent is not repeated: it may not be JSON, and whoever sent it knows it.
        errors = [
            {"at": ".".join(map(str, one["loc"]))[:200], "problem": one["msg"][:200]}
            for one in error.errors()[:_ERRORS_MAX]
        ]
        return problem_response(422, "invalid", "See errors.", errors=errors)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers) if error.headers else None
        return problem_response(error.status_code, "http", str(error.detail), headers)
