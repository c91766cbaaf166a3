"""AWS client tokens: inside a step, the token that botocore would make up is the step's own.

    ecs = use_child_tokens(boto3.client("ecs"))
    attempt.step("ecs:run", lambda key: ecs.run_task(cluster="c", taskDefinition="t"))

Operations that AWS can tell apart by a token (`clientToken`, `ClientRequestToken`, ...) are given
a random one by botocore, one per call: its own retries keep it, a re-run of the step would not.
The token of a step is its child UUID; every token AWS takes may be one. What a caller gives is left
alone, and so is everything outside of attempts.

Owns which token a call is sent with, and which calls are refused. Imports neither boto3 nor
botocore: a client brings its own.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, TypeVar

from oncekey.client.errors import NotSent
from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.fingerprint import fingerprint
from oncekey.engine.attempt_steps import RunningStep
from oncekey.engine.context import current_attempt, current_step

C = TypeVar("C")

_EVENT: Final = "before-parameter-build"
_ID: Final = "oncekey-child-tokens"


def use_child_tokens(client: C) -> C:
    """Make a boto3 (or botocore) client send the tokens of steps; gives the same client back.

    Twice is as good as once. Of a boto3 resource give its client: `resource.meta.client`.
    """
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is None:
        raise ConfigurationError(
            f"use_child_tokens() takes a boto3 client, not a {type(client).__name__}; of a "
            "resource give resource.meta.client"
        )
    # Before botocore's own handler of this event, which fills in what is missing then. Handlers
    # for one service or one operation come earlier still: what they say is the caller's word.
    events.register_first(_EVENT, _fill, unique_id=_ID)
    return client


def _fill(params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
    """Give the tokens that are missing. botocore calls this once per call, before its retries."""
    names = model.idempotent_members
    if not names:
        return
    call = _Call(model, str(context.get("client_region")), params)
    step = current_step()
    token = "" if step is None else str(step.attempt.child_uuid(step.name))
    missing = [name for name in names if name not in params]
    if not missing:
        if step is not None and any(params[name] == token for name in names):
            # The caller has sent the step's token: now there is none left for another call.
            step.admits(call.digest)
    elif step is None:
        call.refuse_outside(missing[0])
    elif not step.admits(call.digest):
        call.refuse_second(step, missing[0])
    else:
        params.update(dict.fromkeys(missing, token))


class _Call:
    """One call of a service: its name for messages, its digest, and why it is refused."""

    def __init__(self, model: Any, region: str, params: dict[str, Any]) -> None:
        self.name = f"{model.service_model.service_name}.{model.name}"
        self._region = region
        self._asked = {k: v for k, v in params.items() if k not in model.idempotent_members}

    @property
    def digest(self) -> bytes:
        """Of all that is asked but the token."""
        try:
            return fingerprint([self.name, self._region, self._asked])
        except InvalidKey as error:
            raise NotSent(
                f"{self.name} was given something that cannot be compared with what a re-run would "
                "send, such as an open file: give its bytes. Nothing was sent"
            ) from error

    def refuse_outside(self, token: str) -> None:
        """Unless it is not going to be run again: then botocore's own token will do."""
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
