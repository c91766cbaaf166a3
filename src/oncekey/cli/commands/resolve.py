"""`oncekey resolve`."""

from __future__ import annotations

import json
from typing import Any

import click

from oncekey import HttpAnswer, KeyStatus
from oncekey.cli.answer_text import AnswerCodec, read_bytes
from oncekey.cli.command_options import json_option
from oncekey.cli.key_choice import KeyChoice, key_options
from oncekey.cli.open_store import UsageProblem
from oncekey.cli.operator_decision import (
    by_option,
    decide_chosen,
    reason_of,
    why_option,
    yes_option,
)
from oncekey.cli.output import Output
from oncekey.core.answer import JSON_CODECS
from oncekey.core.record import State
from oncekey.engine.keys.administration import Resolution, check_unknown, resolution_of


@click.command()
@key_options
@click.option(
    "--succeeded",
    metavar="JSON",
    help="It happened; retries get this value. @FILE, or - for stdin.",
)
@click.option(
    "--codec",
    type=click.Choice(sorted(JSON_CODECS)),
    default="json",
    show_default=True,
    help="With --succeeded: the codec of the operation.",
)
@click.option(
    "--status",
    type=click.IntRange(200, 599),
    help="An HTTP request happened; retries get a response with this status.",
)
@click.option("--body", metavar="TEXT", help="With --status: its body. @FILE, or - for stdin.")
@click.option(
    "--content-type",
    default=HttpAnswer.__dataclass_fields__["content_type"].default,
    show_default=True,
    help="With --status: the type of the body.",
)
@click.option("--failed", metavar="MSG", help="It did not happen and never will; retries get this.")
@click.option("--free", is_flag=True, help="It did not happen; the next call runs it.")
@by_option
@why_option
@yes_option
@json_option
@click.pass_context
def resolve(
    context: click.Context,
    /,
    choice: KeyChoice,
    by: str | None,
    why: str | None,
    yes: bool,
    as_json: bool,
    **decision: Any,
) -> None:
    """Decide a key whose outcome is unknown.

    Find out first what happened, for example by the child keys that `show` prints, and then say
    it: it succeeded with a value (--succeeded), or with an HTTP response (--status, --body); it
    failed (--failed); or it never began, and may be run (--free). The key is shown before you are
    asked, and decided only if it still is as it was shown: if its owner, a recovery or somebody
    else was faster, nothing is changed and the exit code is 5. Who and why go into the record.

    Without a terminal, or with --json, give --yes, --by and --why. URL may be left out if
    ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey resolve sqlite:///payments.db --tag 3f9c21d0a7b4 --succeeded '{"id": "ch_7"}'
      oncekey resolve --tag 3f9c21d0a7b4 --status 201 --body @answer.json
      oncekey resolve --tag 3f9c21d0a7b4 --failed "card declined" --by ana --why "INC-7" --yes
      oncekey resolve postgresql://ops@db/shop charge order-1042 --scope acct_1 --free
    """
    out = Output(as_json=as_json)
    answer = _answer(decision)
    if "-" in (decision["succeeded"], decision["body"]) and not yes:
        raise click.UsageError("stdin has the answer, so nobody can be asked: give --yes", context)
    codec = AnswerCodec(decision["codec"])

    def decide(status: KeyStatus) -> tuple[Resolution, State]:
        check_unknown(status)
        _check_surface(status, answer)
        resolution = resolution_of(status, answer, decision["failed"], decision["free"], codec)
        return resolution, State.UNKNOWN

    reason = reason_of(by, why, yes=yes, as_json=as_json)
    decide_chosen(context, out, choice, decide, reason)


def _answer(decision: dict[str, Any]) -> Any:
    """The answer that was given; ... if it is another decision."""
    value, status = decision["succeeded"], decision["status"]
    given = [value is not None, status is not None, decision["failed"] is not None]
    if sum(given) + decision["free"] != 1:
        raise click.UsageError(
            "give one of --succeeded, --status, --failed and --free", click.get_current_context()
        )
    if decision["body"] is not None and status is None:
        raise click.UsageError("--body goes with --status", click.get_current_context())
    if status is not None:
        body = b"" if decision["body"] is None else read_bytes("--body", decision["body"])
        return HttpAnswer(status, body, decision["content_type"])
    return ... if value is None else _json(read_bytes("--succeeded", value))


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageProblem(
            f"--succeeded: this is no JSON ({error}); a text needs quotes: '\"paid\"'"
        ) from error


def _check_surface(status: KeyStatus, answer: Any) -> None:
    if answer is ... or isinstance(answer, HttpAnswer) == (status.surface == "http"):
        return
    if status.surface == "http":
        raise UsageProblem(f"{status.route} answers HTTP requests: give --status and --body")
    raise UsageProblem(f"{status.operation} is no HTTP request: give its value with --succeeded")
