"""`oncekey resolve`, and how it and `oncekey release` decide a key: the key is shown, somebody is
asked, it is decided as it was shown, and it is shown again.

The key is decided by compare-and-set: if it is not any more as it was shown, nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from oncekey import HttpAnswer, KeyChanged, KeyStatus
from oncekey.cli import command_input
from oncekey.cli.command_input import (
    Reason,
    by_option,
    json_option,
    read_bytes,
    reason_of,
    why_option,
    yes_option,
)
from oncekey.cli.key_choice import KeyChoice, find_chosen, key_options, store_of, the_one
from oncekey.cli.key_report import key_rows, span, status_data
from oncekey.cli.output import ExitCode, Output, UsageProblem, error_line
from oncekey.cli.store_access import warn_of_move
from oncekey.core.answer import JSON_CODECS
from oncekey.core.codec import JSON
from oncekey.core.record import State
from oncekey.core.store import Store
from oncekey.engine.keys.administration import (
    Resolution,
    check_decidable,
    check_unknown,
    decide_key,
    look_at,
    note_of,
    resolution_of,
    run_plan,
)

# What is decided of a key that is shown, and in which state it must be.
Decide = Callable[[KeyStatus], tuple[Resolution, State]]
_CONSEQUENCE = {
    State.SUCCEEDED: "From then on every retry gets this answer, and the operation is not run.",
    State.FAILED: "From then on every retry gets this error, and the operation is not run.",
    State.ABSENT: "The next call then RUNS the operation: be sure that it has not happened.",
}


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


class AnswerCodec:
    """Writes plain JSON under the name of the operation's own codec, which reads it back."""

    def __init__(self, name: str) -> None:
        self.name = name

    def dump(self, value: Any, /) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def load(self, data: bytes, /) -> Any:
        return json.loads(data)


# --- the decision ---------------------------------------------------------------------------------


def decide_chosen(
    context: click.Context, out: Output, choice: KeyChoice, decide: Decide, reason: Reason
) -> None:
    """Decides the key that was chosen."""
    with store_of(choice) as store:
        if store is not None:
            run_plan(store, check_decidable())
            warn_of_move(store)
        found = find_chosen(store, choice)
        status = the_one(found)
        if status is None or store is None:
            if out.as_json:
                out.data({"found": False, "decided": False, "tried": found.tried})
            else:
                out.line(f"no such key: {found.tried}")
            context.exit(ExitCode.NOT_FOUND)
        try:
            resolution, expected = decide(status)
        except KeyChanged as error:
            _report_refusal(out, status, error)
            context.exit(ExitCode.FAILED)
        note_of(resolution.word, status, by=reason.by, why=reason.why)  # refuses bad texts now
        if reason.asks and not _confirmed(out, status, resolution):
            error_line("nothing was changed")
            context.exit(ExitCode.FAILED)
        _decide(context, out, store, status, resolution, expected, reason)


def _confirmed(out: Output, status: KeyStatus, resolution: Resolution) -> bool:
    out.rows(key_rows(status, bodies=False))
    out.line("")
    out.line(_CONSEQUENCE[resolution.state])
    is_silent = status.finished_at is None and status.error is None  # it has not said how it ended
    if resolution.state is State.ABSENT and is_silent:
        silent = span((status.seen_at - status.lease_until).total_seconds())
        out.line(f"Its owner has been silent for {silent}. If it is only suspended, it may wake.")
    return command_input.ask(f"Decide {status.tag} as {resolution.word}?")


def _decide(
    context: click.Context,
    out: Output,
    store: Store,
    status: KeyStatus,
    resolution: Resolution,
    expected: State,
    reason: Reason,
) -> None:
    plan = decide_key(status, resolution, expected, by=reason.by, why=reason.why)
    try:
        now = run_plan(store, plan)
    except KeyChanged as error:
        _report_refusal(out, run_plan(store, look_at(bytes.fromhex(status.id), JSON)), error)
        context.exit(ExitCode.CHANGED)
    if out.as_json:
        out.data({"found": True, "decided": True, "as": resolution.word, "now": _data(now)})
        return
    out.line(f"{status.tag} {resolution.word}")
    if now is None:
        out.line("the next call runs the operation; show --history has what was before")
    else:
        out.rows(key_rows(now, bodies=False))


def _report_refusal(out: Output, now: KeyStatus | None, error: KeyChanged) -> None:
    """Says why nothing was changed, and what the key is now."""
    if out.as_json:
        out.data({"found": True, "decided": False, "reason": str(error), "now": _data(now)})
    elif now is not None:
        out.rows(key_rows(now, bodies=False))
    else:
        out.line("the key is free: the next call runs the operation")
    error_line(str(error))


def _data(status: KeyStatus | None) -> dict[str, Any] | None:
    return None if status is None else status_data(status, bodies=False)
