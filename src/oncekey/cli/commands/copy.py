"""`oncekey copy`: it copies every page, and goes through all of them again to see that nothing is
missing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import click

from oncekey.cli.command_input import confirm, json_option, yes_option
from oncekey.cli.output import ExitCode, Output, UsageProblem, error_line
from oncekey.cli.password_redaction import redact_url
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.cli.store_access import has_records, open_store, secret_from
from oncekey.core.errors import StoreUnavailable
from oncekey.core.identity import Identities
from oncekey.core.record import FOREVER_US
from oncekey.core.search import NEWEST, PAGE_LIMIT_MAX, Cursor
from oncekey.engine.keys.key_status import time_of
from oncekey.engine.store_urls import moving_urls
from oncekey.stores.move import DualStore
from oncekey.stores.move.copy_rule import CopyResult
from oncekey.stores.move.record_copy import COPY_PAGE_DEFAULT, LargeRecord, copy_page

# A process in dual mode needs a moment from its claim in the old store to that in the new one.
HELD_LOOKS: Final = 5
HELD_SECONDS: Final = 0.5
# Called after each page with the progress so far.
OnProgress = Callable[["CopyProgress"], None]
LARGE_LINES_MAX = 20  # keys that are named one by one; --json has all of them


@dataclass
class CopyProgress:
    """How far a copy has come.

    counts     what became of the records of the first walk
    past       past generations sent to the history
    past_large past generations and expired records that the new store cannot hold
    checked    records that the second walk has compared
    repaired   those of them that were missing, and were copied then
    held       ids that a process holds which does not know the new store
    large      records that the new store cannot hold
    stopped    it was interrupted; `after` is where to go on
    """

    counts: Counter[CopyResult] = field(default_factory=Counter)
    past: int = 0
    past_large: int = 0
    checked: int = 0
    repaired: int = 0
    held: tuple[bytes, ...] = ()
    large: tuple[LargeRecord, ...] = ()
    stopped: bool = False
    after: Cursor | None = None

    @property
    def seen(self) -> int:
        return self.counts.total()

    @property
    def is_complete(self) -> bool:
        return not (self.stopped or self.held or self.large or self.past_large)


@click.command("copy")
@click.argument("old_url", metavar="FROM")
@click.argument("new_url", metavar="TO")
@click.option("--after", metavar="PLACE", help="Go on where an interrupted copy has ended.")
@click.option(
    "--limit",
    type=click.IntRange(1, PAGE_LIMIT_MAX),
    default=COPY_PAGE_DEFAULT,
    show_default=True,
    help="Records per page: one batch for each store.",
)
@click.option("--no-history", is_flag=True, help="Leave out past generations in their audit time.")
@click.option("--secret-env", metavar="NAME", help="The variable that has the stores' secret.")
@yes_option
@json_option
def copy(
    old_url: str,
    new_url: str,
    after: str | None,
    limit: int,
    no_history: bool,
    secret_env: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Copy every key to another store.

    The second step of a move: first every process is restarted with moving://FROM,TO, then this
    runs, then every process is restarted with TO. It may run beside them. With all processes
    stopped it is a whole move by itself.

    Everything is copied, and then compared. After that FROM is refused by itself, and TO is not.
    Ctrl-C ends it after the page under way and prints how to go on; copying twice does no harm.
    It ends with exit code 1 if a key is held by a process that does not know TO, or if TO cannot
    hold a record, because it is too large: everything else was copied then.

    \b
    Examples:
      oncekey copy sqlite:///payments.db postgresql://app@db/shop
      oncekey copy sqlite:///payments.db postgresql://app@db/shop --yes --json
    """
    out = Output(as_json=as_json)
    for url in (old_url, new_url):
        if moving_urls(url) is not None:
            raise UsageProblem("give the two stores one by one: oncekey copy FROM TO")
    has_records(old_url)  # refuses what is no store, or is of an older release
    confirm(
        f"Does every process that uses {redact_url(old_url)} run with moving://FROM,TO by now, "
        "or is it stopped? A process that knows only the old store would run keys a second time",
        if_meant="every process runs with both",
        yes=yes,
        as_json=as_json,
    )
    progress = CopyProgress(after=Cursor.parse(after) if after else None)
    old = open_store(old_url)
    with closing(old), closing(open_store(new_url)) as new:
        store = DualStore(old, new)
        store.bind(Identities(secret_from(secret_env)).check_value())
        _run(out, store, progress, limit=limit, history=not no_history)
        if progress.is_complete:
            store.finish_copy()
    _report(out, old_url, new_url, progress)
    if progress.held or progress.large or progress.past_large:
        return ExitCode.FAILED
    return ExitCode.INTERRUPTED if progress.stopped else ExitCode.OK


def _run(
    out: Output, store: DualStore, progress: CopyProgress, *, limit: int, history: bool
) -> None:
    rows = store.old.measure().rows
    with out.progress("copying") as show, stop_on_signal() as stop:
        try:
            copy_all(
                store,
                progress,
                lambda now: show(_progress_text(now, rows)),
                stop,
                limit=limit,
                history=history,
            )
        except StoreUnavailable:
            if progress.after is not None:
                error_line(f"copied up to here; go on with --after {progress.after}")
            raise


def _progress_text(progress: CopyProgress, rows: int) -> str:
    if progress.checked:
        return f"comparing: {progress.checked:,} of {progress.seen:,}"
    width = 20
    part = min(progress.seen / rows, 1.0) if rows > 0 else 0.0
    bar = "█" * round(part * width)
    return f"copying: {bar:░<{width}} {progress.seen:,} of about {max(rows, progress.seen):,}"


def _data(old_url: str, new_url: str, progress: CopyProgress) -> dict[str, Any]:
    return {
        "from": redact_url(old_url),
        "to": redact_url(new_url),
        "copied": progress.counts[CopyResult.COPIED],
        "already_there": progress.counts[CopyResult.THERE],
        "newer_there": progress.counts[CopyResult.NEWER],
        "past_generations": progress.past,
        "compared": progress.checked,
        "copied_when_compared": progress.repaired,
        "held_by_others": [id.hex()[:12] for id in progress.held],
        "too_large": [
            {
                "tag": one.id.hex()[:12],
                "operation": one.operation,
                "bytes": one.size,
                "limit": one.most,
                "expires_at": _time(one.expires_at),
            }
            for one in progress.large
        ],
        "past_too_large": progress.past_large,
        "complete": progress.is_complete,
        "after": str(progress.after) if progress.stopped and progress.after else None,
    }


def _time(us: int) -> str | None:
    """When a key expires; None for one that never does."""
    return f"{time_of(us):%Y-%m-%d %H:%M:%S}Z" if us < FOREVER_US else None


def _report_large(progress: CopyProgress) -> None:
    for one in progress.large[:LARGE_LINES_MAX]:
        until = _time(one.expires_at)
        error_line(
            f"{one.id.hex()[:12]} ({one.operation}) is too large for the new store: it has "
            f"{one.size:,} bytes, and {one.most:,} are possible; "
            + (f"it expires at {until}" if until else "it never expires by itself")
        )
    if progress.large:
        error_line(
            f"{len(progress.large):,} keys stay in the old store, because they are too large for "
            "the new one; everything else was copied. Processes with both stores go on to replay "
            "them. Raise the limit of the new store (etcd: --max-request-bytes of the servers, and "
            "request_bytes= in the URL), or wait until they have expired, and copy again"
        )
    if progress.past_large:
        error_line(
            f"{progress.past_large:,} past generations or expired keys are too large for the new "
            "store. Nobody needs them but for the audit: leave them out by --no-history"
        )


def _report(out: Output, old_url: str, new_url: str, progress: CopyProgress) -> None:
    data = _data(old_url, new_url, progress)
    if out.as_json:
        out.data(data)
    else:
        rows = {
            name.replace("_", " "): f"{value:,}"
            for name, value in data.items()
            if type(value) is int
        }
        out.rows({"from": data["from"], "to": data["to"], **rows})
        if progress.is_complete:
            out.line("complete: restart the processes with the new store alone, one by one")
    _report_large(progress)
    if progress.held:
        tags = ", ".join(data["held_by_others"][:3])
        error_line(
            f"{len(progress.held)} keys are held in the old store only ({tags}): a process does "
            "not run with both stores, or one has died and its lease has not ended yet. Restart "
            "it with moving://FROM,TO, and copy again"
        )
    elif progress.stopped:
        how = f"--after {data['after']}" if data["after"] else "the same command"
        error_line(f"interrupted before everything was copied and compared; go on with {how}")


# --- the loop -------------------------------------------------------------------------------------


def copy_all(
    store: DualStore,
    progress: CopyProgress,
    on_progress: OnProgress,
    stop: StopRequest,
    *,
    limit: int,
    history: bool,
) -> None:
    """Copy everything from `progress.after` on, and compare everything."""
    cursor: Cursor | None = progress.after or NEWEST
    while cursor is not None and not stop.requested:
        progress.after = cursor  # so that an error leaves the place of its page
        page = copy_page(store, cursor, limit, history=history)
        progress.counts += page.counts
        progress.past += page.past
        progress.past_large += page.past_large if history else 0
        cursor = page.next
        on_progress(progress)
    if cursor is not None:
        progress.after, progress.stopped = cursor, True
        return
    _compare_all(store, progress, on_progress, stop, limit)


def _compare_all(
    store: DualStore,
    progress: CopyProgress,
    on_progress: OnProgress,
    stop: StopRequest,
    limit: int,
) -> None:
    cursor: Cursor | None = NEWEST
    held: list[bytes] = []
    large: list[LargeRecord] = []
    while cursor is not None:
        if stop.requested:
            progress.stopped = True
            return
        page = copy_page(store, cursor, limit, history=False)
        progress.checked += page.counts.total()
        progress.repaired += page.counts[CopyResult.COPIED]
        held += page.held
        large += page.large
        cursor = page.next
        on_progress(progress)
    progress.large = tuple(large)
    progress.held = _still_held(store, tuple(held))


def _still_held(store: DualStore, ids: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Those that stay held in the old store only, although their owners had the time to claim them
    in the new one too."""
    for _ in range(HELD_LOOKS):
        if not ids:
            break
        time.sleep(HELD_SECONDS)
        results = store.copy(ids)
        pairs = zip(ids, results, strict=True)
        ids = tuple(id for id, result in pairs if result is CopyResult.HELD)
    return ids
