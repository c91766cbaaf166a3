"""`oncekey consume`: what it runs, what it prints, how signals end it, and how it fails."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command_runner import Running, Start, at_terminal
from tests.cli.conftest import Command, Ran
from tests.cli.queue_shop import environment_of, importable, imported, write_shop

from oncekey import Once
from oncekey.cli.output import ExitCode

BOTH = pytest.mark.parametrize("which", ["consumer", "async_consumer"])


def events(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def shipped(folder: Path) -> list[str]:
    file = folder / "shipped"
    return file.read_text().split() if file.exists() else []


# --- what it runs and prints ----------------------------------------------------------------------


@BOTH
def test_json_lines_tell_of_the_run_and_of_messages_that_are_not_just_removed(
    here: Command, tmp_path: Path, which: str
) -> None:
    with imported(tmp_path) as shop:
        shop.orders.send('{"id": "o1"}')
        shop.orders.send('{"id": "o2", "fail": "no such order"}')
        shop.orders.send('{"id": "o3", "later": "the van is full"}')
        shop.stop_after(4, getattr(shop, which))
        ran = here("consume", f"{shop.__name__}:{which}", "--json", "--every", "1h")
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    first, *settled, last = events(ran.out)
    assert (first["event"], first["consumers"]) == ("begin", ["ship"])
    by_kind = {event.pop("disposition"): event for event in settled}
    assert set(by_kind) == {"dead letter", "retry"}
    letter, retry = by_kind["dead letter"], by_kind["retry"]
    assert (letter["event"], letter["consumer"], letter["queue"]) == ("settled", "ship", "orders")
    assert (letter["message"], letter["reason"]) == ("m2", "Terminal: no such order")
    assert (retry["message"], retry["seconds"]) == ("m3", 0.01)
    assert last["event"] == "end"
    assert (last["removed"], last["dead_letters"], last["retried"]) == (2, 1, 1)
    assert sorted(shipped(tmp_path)) == ["o1", "o3"]


@BOTH
def test_lines_for_people_show_what_somebody_may_look_at(
    here: Command, tmp_path: Path, which: str
) -> None:
    with imported(tmp_path) as shop:
        shop.orders.send('{"id": "o1"}')
        shop.orders.send('{"id": "o2", "fail": "no \\u001b[2J such order"}')
        shop.stop_after(2, getattr(shop, which))
        ran = here("consume", f"{shop.__name__}:{which}")
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    begin, letter, end = ran.out.splitlines()
    assert begin.startswith("consuming: ship;")
    assert letter.endswith(
        r"ship: message m2 of orders: dead letter: Terminal: no \x1b[2J such order"
    )
    assert end == "ship ended: 1 removed, 1 dead letter"


def test_figures_are_printed_every_period_and_count_replays(start: Start, tmp_path: Path) -> None:
    with Once(f"sqlite:///{tmp_path}/keys.db") as once:
        body = b'{"id": "o1"}'
        once.run("ship", "o1", lambda attempt: None, scope="ship/orders", request=body)
    write_shop(tmp_path, "shop", 'orders.send(\'{"id": "o1"}\')\n')
    command = ("consume", "shop:consumer", "--json", "--every", "100ms")
    running = start(*command, **environment_of(tmp_path))
    figures = running.round()
    while not figures.get("removed"):
        figures = running.round()
    assert (figures["event"], figures["consumer"]) == ("figures", "ship")
    assert (figures["removed"], figures["replayed"], figures["in_hand"]) == (1, 1, 0)
    assert running.end(signal.SIGTERM) == ExitCode.OK
    assert shipped(tmp_path) == []


def test_a_list_and_a_function_are_consumed_side_by_side(here: Command, tmp_path: Path) -> None:
    more = "every = [consumer, mailer]\ndef make():\n    return every\n"
    with imported(tmp_path, more) as shop:
        shop.orders.send('{"id": "o1"}')
        shop.mails.send('{"id": "m1"}')
        shop.stop_after(2, *shop.every)
        ran = here("consume", f"{shop.__name__}:make", "--json")
    assert ran.code == ExitCode.OK
    ends = {one["consumer"]: one["removed"] for one in events(ran.out) if one["event"] == "end"}
    assert ends == {"ship": 1, "mail": 1}


def test_anything_that_runs_and_stops_is_run_with_what_it_counts(
    here: Command, tmp_path: Path
) -> None:
    more = (
        "class Publisher:\n"
        "    name, counts = 'publisher', {}\n"
        "    def run(self): self.counts['sent twice'] = 2\n"
        "    def stop(self): pass\n"
        "publisher = Publisher()\n"
    )
    with imported(tmp_path, more) as shop:
        ran = here("consume", f"{shop.__name__}:publisher")
    assert ran.code == ExitCode.OK
    assert ran.out.splitlines()[-1] == "publisher ended: 2 sent twice"


def test_a_terminal_shows_a_live_line(executable: str, tmp_path: Path) -> None:
    write_shop(tmp_path, "shop", 'orders.send(\'{"id": "o1"}\')\n')
    command = [executable, "consume", "shop:consumer"]
    with at_terminal(command, **environment_of(tmp_path)) as terminal:
        terminal.expect("ship: 1 removed")
        assert terminal.end(signal.SIGTERM) == ExitCode.OK


# --- logs -----------------------------------------------------------------------------------------

NOISY = """
import logging
{setup}
def quarrel(message):
    logging.getLogger("shop").warning("the van is late")
noisy = Consumer(once, quarrel, orders, name="noisy", **options)
orders.send('{{"id": "o1"}}')
stop_after(1, noisy)
"""


@contextmanager
def unlevelled(logger: logging.Logger, usual: int = logging.NOTSET) -> Iterator[None]:
    """Take away the level that another test has given to a logger."""
    before = logger.level
    logger.setLevel(usual)
    yield
    logger.setLevel(before)


@pytest.fixture
def consume_noisy(here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Consumes with a module of its own, where nobody has set up logging: pytest has, for tests."""

    def consume(more: str, *options: str) -> Ran:
        with (
            unlevelled(logging.getLogger("oncekey")),
            unlevelled(logging.getLogger(), logging.WARNING),
            monkeypatch.context() as patched,
            importable(tmp_path, more) as name,
        ):
            patched.setattr(logging.getLogger(), "handlers", [])
            ran = here("consume", f"{name}:noisy", *options)
        (tmp_path / "keys.db").unlink()
        return ran

    return consume


def test_warnings_are_shown_where_nobody_set_up_logging(consume_noisy: Command) -> None:
    plain = consume_noisy(NOISY.format(setup=""))
    lines = consume_noisy(NOISY.format(setup=""), "--json")
    assert plain.err == "oncekey: shop: the van is late\n"
    (log,) = [event for event in events(lines.out) if event["event"] == "log"]
    assert (log["level"], log["logger"], log["text"]) == ("warning", "shop", "the van is late")
    assert lines.err == ""


CLIENT_LOG = """
import logging
class Delivered:
    body = b"card Ada!"
    def __repr__(self):
        return repr(self.body)
def quarrel(message):
    log = logging.getLogger("pika.adapters.blocking_connection")
    log.warning("returned: channel=%s; size=%d; prefix=%.255r", 7, 9, b"card Ada!")
    log.warning("unhandled: %r", Delivered())
    log.warning("of %(queue)s: %(body)s", {"queue": "orders", "body": bytearray(b"card Ada!")})
noisy = Consumer(once, quarrel, orders, name="noisy", **options)
orders.send('{"id": "o1"}')
stop_after(1, noisy)
"""


def test_a_message_in_the_log_of_a_client_is_not_shown(consume_noisy: Command) -> None:
    plain = consume_noisy(CLIENT_LOG)
    lines = consume_noisy(CLIENT_LOG, "--json")
    assert "Ada!" not in plain.err + plain.out + lines.out + lines.err
    assert "returned: channel=7; size=9; prefix=(9 bytes)" in plain.err
    assert "unhandled: (a Delivered)" in plain.err
    assert "of orders: (9 bytes)" in plain.err


def test_logging_of_the_users_module_is_left_alone(consume_noisy: Command) -> None:
    setup = "logging.basicConfig(format='mine: %(message)s')"
    ran = consume_noisy(NOISY.format(setup=setup), "--json")
    assert (ran.code, ran.err) == (ExitCode.OK, "mine: the van is late\n")
    assert {event["event"] for event in events(ran.out)} == {"begin", "end"}


# --- signals --------------------------------------------------------------------------------------

WAITING = """
orders.send('{"id": "o1", "wait": true}')
orders.send('{"id": "o2"}')
"""


def start_waiting(start: Start, folder: Path, which: str, stop_timeout: str = "30s") -> Running:
    """A consumer whose handler of o1 has begun, and waits at the gate; o2 has not begun."""
    os.mkfifo(folder / "gate")
    write_shop(folder, "shop", WAITING, stop_timeout)
    running = start("consume", f"shop:{which}", **environment_of(folder))
    while running.line() != "begun o1\n":
        pass
    return running


@BOTH
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_i14_a_signal_lets_running_handlers_end_and_gives_the_others_back(
    start: Start, tmp_path: Path, which: str, how: signal.Signals
) -> None:
    running = start_waiting(start, tmp_path, which)
    running.signal(how)
    assert "stopping, with 2 in hand" in running.err.get(timeout=60)
    (tmp_path / "gate").write_text("go")
    assert running.wait() == ExitCode.OK
    assert running.line() == "ship ended: 1 removed, 1 given back\n"
    assert shipped(tmp_path) == ["o1"]
    with Once(f"sqlite:///{tmp_path}/keys.db") as once:
        status = once.get("ship", "o1", scope="ship/orders")
        assert status is not None
        assert status.state == "succeeded"
        assert once.get("ship", "o2", scope="ship/orders") is None


@BOTH
def test_a_second_signal_ends_it_at_once(start: Start, tmp_path: Path, which: str) -> None:
    running = start_waiting(start, tmp_path, which)
    running.signal(signal.SIGTERM)
    assert "a second signal ends it at once" in running.err.get(timeout=60)
    running.signal(signal.SIGINT)
    assert running.wait() == ExitCode.INTERRUPTED
    assert "ended at once" in running.err.get(timeout=60)
    assert shipped(tmp_path) == []


@BOTH
def test_handlers_that_outlast_the_stop_timeout_make_it_fail(
    start: Start, tmp_path: Path, which: str
) -> None:
    running = start_waiting(start, tmp_path, which, stop_timeout="50ms")
    assert running.end(signal.SIGTERM) == ExitCode.FAILED
    said = ""
    while "1 handlers did not end in time" not in said:
        said += running.err.get(timeout=60)
    assert "1 handlers still run after 50ms" in said


# --- failures at the start ------------------------------------------------------------------------

FAILING = """
class Late(QuickBroker):
    missing = 2
    def facts(self):
        self.missing -= 1
        if self.missing >= 0:
            raise BrokerUnavailable("nothing answers at 127.0.0.1:5672")
        return super().facts()
class Odd(Consumer):
    def run(self):
        raise ValueError("a driver's own error")
late_queue = Late("late")
starts_first = Consumer(once, ship, late_queue, name="starts_first", **options)
odd = Odd(once, ship, QuickBroker("odd"), name="odd", **options)
nameless = Consumer(
    once, ship, MemoryBroker(facts=BrokerFacts("nameless")), name="nameless", key="delivery"
)
nothing = []
def broken():
    raise KeyError("URL")
async def late():
    return consumer
"""


@pytest.mark.parametrize(
    ("names", "code", "words"),
    [
        (("odd",), ExitCode.FAILED, "odd ended with ValueError: a driver's own error"),
        (("nameless",), ExitCode.USAGE, "key='delivery'"),
        (("nothing",), ExitCode.USAGE, "is empty"),
        (("broken",), ExitCode.USAGE, "broken() failed: KeyError: 'URL'"),
        (("late",), ExitCode.USAGE, "is an async function"),
        (("orders",), ExitCode.USAGE, "is QuickBroker; name a Consumer"),
        (("Consumer",), ExitCode.USAGE, "is the class Consumer; name a Consumer"),
        (("missing",), ExitCode.USAGE, "cannot be imported"),
        (("consumer", "consumer"), ExitCode.USAGE, "named twice"),
    ],
)
def test_what_cannot_be_consumed_is_one_clear_line(
    here: Command, tmp_path: Path, names: tuple[str, ...], code: ExitCode, words: str
) -> None:
    with imported(tmp_path, FAILING) as shop:
        ran = here("consume", *(f"{shop.__name__}:{name}" for name in names))
    assert ran.code == code
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert "ended" not in ran.out


def test_a_consumer_that_starts_before_its_broker_waits_for_it(
    here: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with imported(tmp_path, FAILING) as shop:
        shop.late_queue.send('{"id": "o1"}')
        shop.stop_after(1, shop.starts_first)
        ran = here("consume", f"{shop.__name__}:starts_first", "--json")
    assert ran.code == ExitCode.OK
    assert caplog.text.count("cannot begin yet: nothing answers at 127.0.0.1:5672") == 2
    assert shipped(tmp_path) == ["o1"]


def test_one_that_fails_stops_the_others_gracefully(here: Command, tmp_path: Path) -> None:
    with imported(tmp_path, FAILING) as shop:
        shop.orders.send('{"id": "o1"}')
        ran = here("consume", f"{shop.__name__}:consumer", f"{shop.__name__}:odd", "--json")
    assert ran.code == ExitCode.FAILED
    assert "a driver's own error" in ran.err
    ends = [event for event in events(ran.out) if event["event"] == "end"]
    assert [end["consumer"] for end in ends] == ["ship", "odd"]
    assert ends[0]["in_hand"] == 0
