"""The API's request and response models. Owns the limits of everything a client can send."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from oncekey.demo.cards import Card

CENTS_MAX = 1_000_000
BODY_MAX_BYTES = 16 * 1024
LIST_MAX = 100
ORDER = r"^[A-Za-z0-9._-]{1,64}$"
CHARGE_ID = r"^ch_[0-9a-f]{16}$"


def _number(value: Any) -> Any:
    """JSON has one kind of number, so 5.0 is whole; but "5" and true are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a whole number")
    return value


Cents = Annotated[int, Field(ge=1, le=CENTS_MAX), BeforeValidator(_number)]


class NewCharge(BaseModel):
    model_config = ConfigDict(extra="forbid")

    order: Annotated[str, Field(pattern=ORDER, description="your name for what is paid")]
    cents: Cents
    card: Annotated[Card, Field(description="how the provider is to behave")] = Card.OK


class NewRefund(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cents: Cents


class Charge(BaseModel):
    id: str
    order: str
    cents: int
    refunded_cents: int
    payment: Annotated[str, Field(description="the provider's number of it")]
    at: Annotated[float, Field(description="seconds since 1970")]


class Charged(Charge):
    attempt: Annotated[int, Field(description="2 if it took over from one that died")]


class Refunded(BaseModel):
    id: str
    charge: str
    cents: int
    payment: str
    attempt: int


class Entry(BaseModel):
    kind: Literal["charge", "refund"]
    id: str
    order: str
    cents: int
    payment: str
    at: float


class Me(BaseModel):
    id: str
    name: str
    charges: int
    charged_cents: int
    refunded_cents: int


class Problem(BaseModel):
    """RFC 9457; oncekey's own refusals also say whether and how to retry."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str | None = None


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for its OpenAPI document."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {
            "description": _DESCRIPTIONS[status],
            "content": {"application/problem+json": {"schema": schema}},
        }
        for status in statuses
    }


_DESCRIPTIONS = {
    400: "No key, a malformed one, or a body that cannot be read",
    401: "No token, or an unknown one",
    402: "The card was declined: final, and the answer to every retry",
    404: "There is no such thing",
    409: "The first request with this key is still running",
    413: "The body is too large",
    422: "Not understood; or this key was used for another request",
    500: "An earlier request with this key failed",
    502: "The provider did not do it; retry with the same key",
    503: "Nothing was done; retry with the same key",
}
