"""AWS client tokens for boto3: inside a step, the token of a call is the step's child UUID.

    ecs = use_child_tokens(boto3.client("ecs"))
    attempt.step("ecs:run", lambda key: ecs.run_task(cluster="c", taskDefinition="t"))

botocore gives each call of some AWS operations a random token (`clientToken`,
`ClientRequestToken`, ...). Its own retries keep that token, but a re-run of the step would not.
Every such token may be a UUID. A token that the caller gives is left alone, and so are all calls
outside of attempts.

This module decides which token a call is sent with, and which calls are refused. It imports neither
boto3 nor botocore, because a client brings its own.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, TypeVar

from oncekey.client.errors import NotSent
from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.fingerprint import fingerprint
from oncekey.engine.attempts.attempt_base import current_attempt, current_step
from oncekey.engine.attempts.attempt_steps import RunningStep

C = TypeVar("C")

_EVENT: Final = "before-parameter-build"
_ID: Final = "oncekey-child-tokens"


def use_child_tokens(client: C) -> C:
    """Make a boto3 (or botocore) client send the tokens of steps, and return the same client.

    It may be called twice. For a boto3 resource, pass its client: `resource.meta.client`.
    """
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is None:
        raise ConfigurationError(
            f"use_child_tokens() takes a boto3 client, not a {type(client).__name__}; of a "
            "resource give resource.meta.client"
        )
    # It runs before botocore's own handler of this event, which fills in missing tokens. Handlers
    # for one service or one operation run even earlier: their tokens count as the caller's.
    events.register_first(_EVENT, _fill_tokens, unique_id=_ID)
    return client


def _fill_tokens(params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
    """Fill in the missing tokens. botocore calls this once per call, before its retries."""
    names = model.idempotent_members
    if not names:
        return
    call = _Call(model, str(context.get("client_region")), params)
    step = current_step()
    token = "" if step is None else str(step.uuid)
    missing = [name for name in names if name not in params]
    if not missing:
        if step is not None and any(params[name] == token for name in names):
            # The caller sent the step's token, so there is none left for another call.
            step.admits(call.digest)
    elif step is None:
        call.refuse_outside(missing[0])
    elif not step.admits(call.digest):
        call.refuse_second(step, missing[0])
    else:
        params.update(dict.fromkeys(missing, token))


class _Call:
    """One call of an AWS service: its name, its digest, and its refusals."""

    def __init__(self, model: Any, region: str, params: dict[str, Any]) -> None:
        self.name = f"{model.service_model.service_name}.{model.name}"
        self._region = region
        self._params = {k: v for k, v in params.items() if k not in model.idempotent_members}

    @property
    def digest(self) -> bytes:
        """A hash of the whole call without its token."""
        try:
            return fingerprint([self.name, self._region, self._params])
        except InvalidKey as error:
            raise NotSent(
                f"{self.name} was given something that cannot be compared with what a re-run would "
                "send, such as an open file: give its bytes. Nothing was sent"
            ) from error

    def refuse_outside(self, token: str) -> None:
        """Refuse a call outside of a step. If its body never runs again, botocore's own token will
        do, and nothing is refused."""
        attempt = current_attempt()
        if attempt is not None and attempt.retry_safe:
            raise NotSent(
                f"{self.name} is called by a body that is run again where it fails "
                f"({attempt.operation!r} is retry_safe), but outside of its steps: a re-run would "
                "send it with another token, and it could be carried out twice. Call it in "
                f"attempt.step(...), or give it a {token} of its own. Nothing was sent"
            )

    def refuse_second(self, step: RunningStep, token: str) -> NoReturn:
        raise NotSent(
            f"{self.name} is not the first call of step {step.name!r}, whose token went with "
            "another one: one token for two calls would be refused, or answered with the other's "
            f"answer. Give this call a step of its own, or a {token} of its own. Nothing was sent"
        )
