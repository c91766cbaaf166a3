"""What `resolve` and `release` do: show a key, ask, decide it as it was shown, and show it again.

The key is decided by compare-and-set: if it is not any more as it was shown, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import click

from oncekey import KeyChanged, KeyStatus
from oncekey.cli import confirmation
from oncekey.cli.exit_codes import ExitCode
from oncekey.cli.key_choice import KeyChoice, find_chosen, store_of, the_one
from oncekey.cli.key_report import key_rows, span, status_data
from oncekey.cli.open_store import warn_of_move
from oncekey.cli.output import Output, error_line
from oncekey.core.codec import JSON
from oncekey.core.record import State
from oncekey.core.store import Store
from oncekey.engine.keys.administration import (
    Resolution,
    check_decidable,
    decide_key,
    look_at,
    note_of,
    run_plan,
)

# What is decided of a key that is shown, and in which state it must be.
Decide = Callable[[KeyStatus], tuple[Resolution, State]]

_CONSEQUENCE = {
    State.SUCCEEDED: "From then on every retry gets this answer, and the operation is not run.",
    State.FAILED: "From then on every retry gets this error, and the operation is not run.",
    State.ABSENT: "The next call then RUNS the operation: be sure that it has not happened.",
}

by_option = click.option("--by", metavar="WHO", help="Who decides; goes into the record.")
why_option = click.option("--why", metavar="TEXT", help="Why; goes into the record.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


class Reason(NamedTuple):
    """Who decides, and why; `asks` if that is to be confirmed."""

    by: str
    why: str
    asks: bool


def reason_of(by: str | None, why: str | None, *, yes: bool, as_json: bool) -> Reason:
    """The reason, asked for where it was not given and somebody can answer."""
    asks = not yes
    can_ask = confirmation.can_ask() and not as_json
    if asks and not can_ask:
        how = "--json does not ask" if as_json else "there is no terminal to ask at"
        raise click.UsageError(f"{how}: give --yes if it is meant", _context())
    missing = [name for name, text in (("--by", by), ("--why", why)) if not text]
    if missing and not can_ask:
        raise click.UsageError(f"give {' and '.join(missing)}: it goes into the record", _context())
    by = by or confirmation.ask_text("Who decides?", confirmation.user_name())
    why = why or confirmation.ask_text("Why?")
    return Reason(by, why, asks)


def _context() -> click.Context:
    return click.get_current_context()


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
    return confirmation.ask(f"Decide {status.tag} as {resolution.word}?")


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
