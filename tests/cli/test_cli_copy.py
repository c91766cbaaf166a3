"""`oncekey copy`: everything arrives, mistakes end loudly, an interrupted copy goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cli.conftest import Command
from tests.support.etcd_stores import etcd

from oncekey import ConfigurationError, Once, Policy, Terminal
from oncekey.cli.commands.copy import CopyProgress, copy_all
from oncekey.cli.output import ExitCode
from oncekey.cli.password_redaction import redact_url
from oncekey.core.identity import Identities
from oncekey.core.search import Cursor
from oncekey.stores.move import DualStore
from oncekey.stores.sqlite import SQLiteStore

SECRET = "a secret of sixteen bytes"


@pytest.fixture
def urls(tmp_path: Path) -> tuple[str, str]:
    return f"sqlite:///{tmp_path / 'old.db'}", f"sqlite:///{tmp_path / 'new.db'}"


def fill(url: str, count: int = 5, **options: Any) -> None:
    with closing(Once(url, policy=Policy(keep="1h", audit="1h"), **options)) as once:
        for number in range(count):
            once.run("op", f"k{number}", lambda attempt: "first")
        with pytest.raises(Terminal):
            once.run("op", "failed", fail)


def fail(attempt: Any) -> None:
    raise Terminal("card expired")


def answers(url: str, count: int = 5, **options: Any) -> list[Any]:
    with closing(Once(url, **options)) as once:
        return [once.run("op", f"k{n}", lambda attempt: "again").value for n in range(count)]


def test_everything_is_copied_and_the_old_store_is_refused_afterwards(
    here: Command, urls: tuple[str, str]
) -> None:
    old, new = urls
    fill(old)
    done = here("copy", old, new, "--yes", "--json", "--limit", "2")
    assert done.code == 0, done.err
    assert (done.data["copied"], done.data["compared"], done.data["complete"]) == (6, 6, True)
    assert answers(new) == ["first"] * 5
    with pytest.raises(ConfigurationError, match="open the new store"):
        Once(old)
    again = here("copy", old, new, "--yes", "--json")
    assert (again.data["copied"], again.data["already_there"]) == (0, 6)


def test_processes_with_both_stores_go_on_meanwhile(here: Command, urls: tuple[str, str]) -> None:
    old, new = urls
    fill(old)
    with closing(Once(f"moving://{old},{new}", cache=0)) as once:
        assert once.run("op", "k0", lambda attempt: "again").replayed
        once.run("op", "during", lambda attempt: "first")
        done = here("copy", old, new, "--yes")
        assert done.code == 0, done.err
        assert "complete: restart the processes" in done.out
        once.run("op", "after", lambda attempt: "first")
        with closing(Once(new)) as alone:
            for key in ("k4", "during", "after"):
                assert alone.run("op", key, lambda attempt: "again").value == "first"
        assert once.run("op", "after", lambda attempt: "again").replayed


def test_past_generations_are_copied_too(here: Command, urls: tuple[str, str]) -> None:
    old, new = urls
    fill(old)
    with closing(Once(old)) as once:
        failed = once.get("op", "failed")
        assert failed is not None
        once.release(failed, by="ana", why="card renewed")
        once.run("op", "failed", lambda attempt: "second")
    done = here("copy", old, new, "--yes", "--json")
    assert done.data["past_generations"] == 1
    with closing(SQLiteStore(new.removeprefix("sqlite:///"))) as store:
        (past,) = store.history(bytes.fromhex(failed.id))
    assert past.fence == failed.fence


def test_a_process_that_knows_only_the_old_store_stops_the_copy(
    here: Command, urls: tuple[str, str]
) -> None:
    old, new = urls
    fill(old)
    begun, end = threading.Event(), threading.Event()

    def body(attempt: Any) -> str:
        begun.set()
        end.wait(60)
        return "done"

    with closing(Once(old)) as once:
        runner = threading.Thread(target=once.run, args=("op", "long", body))
        runner.start()
        begun.wait(60)
        stopped = here("copy", old, new, "--yes", "--json")
        status = once.get("op", "long")
        end.set()
        runner.join()
    assert status is not None
    assert stopped.code == ExitCode.FAILED
    assert stopped.data["held_by_others"] == [status.tag]
    assert "a process does not run with both stores" in stopped.err
    with pytest.raises(ConfigurationError, match="still being filled"):
        Once(new)
    assert here("copy", old, new, "--yes").code == 0


def test_an_interrupted_copy_says_where_to_go_on(urls: tuple[str, str]) -> None:
    fill(urls[0])
    with both(*urls) as store:
        stop = Stop()
        first = CopyProgress()
        copy_all(store, first, lambda progress: stop.request(), stop, limit=2, history=True)  # type: ignore[arg-type]
        assert (first.seen, first.stopped, first.is_complete) == (2, True, False)
        rest = CopyProgress(after=Cursor.parse(str(first.after)))
        copy_all(store, rest, lambda progress: None, Stop(), limit=2, history=True)  # type: ignore[arg-type]
        assert (rest.seen, rest.checked, rest.repaired, rest.is_complete) == (4, 6, 0, True)


class Stop:
    requested = False

    def request(self) -> None:
        self.requested = True


@contextmanager
def both(old: str, new: str) -> Iterator[DualStore]:
    paths = [url.removeprefix("sqlite:///") for url in (old, new)]
    with closing(DualStore(*(SQLiteStore(path) for path in paths))) as store:
        store.bind(Identities(None).check_value())
        yield store


def test_i4_keys_that_are_too_large_for_the_new_store_are_named_and_stay(
    here: Command, urls: tuple[str, str]
) -> None:
    """Everything else is copied. With a higher limit the rest is too."""
    old, new = urls[0], etcd().url(uuid4().hex)
    fill(old)
    with closing(Once(old, policy=Policy(keep="1h", audit="1h"))) as once:
        once.run("invoice", "large", lambda attempt: "x" * 100_000)
        status = once.get("invoice", "large")
    assert status is not None
    small = f"{new}?request_bytes=70000"
    stopped = here("copy", old, small, "--yes", "--json")
    assert stopped.code == ExitCode.FAILED, stopped.err
    assert (stopped.data["copied"], stopped.data["complete"]) == (6, False)
    (named,) = stopped.data["too_large"]
    assert (named["tag"], named["operation"]) == (status.tag, "invoice")
    assert named["bytes"] > 100_000 > named["limit"]
    assert f"{status.tag} (invoice) is too large" in stopped.err
    assert "request_bytes= in the URL" in stopped.err
    with closing(Once(f"moving://{old},{small}", cache=0)) as once:
        assert once.run("invoice", "large", lambda attempt: "again").value == "x" * 100_000
    with closing(Once(small)) as once, pytest.raises(ConfigurationError, match="still being"):
        once.run("op", "k0", lambda attempt: "again")
    done = here("copy", old, new, "--yes", "--json")
    assert (done.code, done.data["complete"], done.data["too_large"]) == (0, True, [])
    with closing(Once(new)) as once:
        assert once.run("invoice", "large", lambda attempt: "again").value == "x" * 100_000


def test_stores_with_a_secret_are_copied_with_it(here: Command, urls: tuple[str, str]) -> None:
    old, new = urls
    fill(old, secret=SECRET)
    wrong = here("copy", old, new, "--yes")
    assert wrong.code == ExitCode.USAGE
    assert "the old store: this store was first opened with another secret" in wrong.err
    done = here("copy", old, new, "--yes", "--secret-env", "SECRET", SECRET=SECRET)
    assert done.code == 0, done.err
    assert answers(new, secret=SECRET) == ["first"] * 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("OLD", "NEW"), "give --yes if every process runs with both"),
        (("NEW", "OLD", "--yes"), "no such file"),
        (("OLD", "moving://OLD,NEW", "--yes"), "one by one"),
        (("OLD", "OLD", "--yes"), "are the same one"),
        (("OLD", "NEW", "--yes", "--after", "nowhere"), "is not where a page has ended"),
    ],
)
def test_a_copy_that_cannot_work_is_refused(
    here: Command, urls: tuple[str, str], arguments: tuple[str, ...], message: str
) -> None:
    fill(urls[0], 0)
    names = [one.replace("OLD", urls[0]).replace("NEW", urls[1]) for one in arguments]
    refused = here("copy", *names)
    assert refused.code == ExitCode.USAGE
    assert message in refused.err
    Once(urls[0]).close()  # it may be used as before


def test_operators_see_and_decide_keys_of_both_stores(here: Command, urls: tuple[str, str]) -> None:
    pair = f"moving://{urls[0]},{urls[1]}"
    fill(urls[0])
    with closing(Once(pair)) as once:
        once.run("op", "k9", lambda attempt: "first")
    listed = here("list", "--json", ONCEKEY_STORE=pair)
    assert len(listed.data["keys"]) == 7
    freed = here(
        "release", "op", "failed", "--by", "ana", "--why", "renewed",
        "--yes", ONCEKEY_STORE=pair,
    )  # fmt: skip
    assert freed.code == 0, freed.err
    with closing(Once(pair)) as once:
        assert once.run("op", "failed", lambda attempt: "second").value == "second"


@pytest.mark.parametrize("url", ["moving://", "moving://sqlite:///a.db", "moving://a.db,b.db"])
def test_a_moving_url_names_two_stores(url: str) -> None:
    with pytest.raises(ConfigurationError, match="needs the old and the new store"):
        Once(url)


def test_passwords_of_both_urls_are_hidden() -> None:
    url = "moving://postgresql://a:one@h/d,postgresql://b:two@h/e"
    assert redact_url(url) == "moving://postgresql://a:***@h/d,postgresql://b:***@h/e"
