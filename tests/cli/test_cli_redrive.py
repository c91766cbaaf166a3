"""`oncekey redrive`: dead letters go back, and each failed key among them runs once more."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.cli.command_runner import PATIENCE_SECONDS, Running, Start, at_terminal
from tests.cli.conftest import Command
from tests.cli.queue_shop import environment_of, imported, write_shop
from tests.support.servers.processes import wait_until

from oncekey.cli.output import ExitCode
from oncekey.queues import Kind, Message
from oncekey.queues.redrive import REDRIVE_HEADER

BOTH = pytest.mark.parametrize("which", ["consumer", "async_consumer"])


def make_dead_letters(shop: ModuleType, many: int) -> None:
    """Lets the handler fail for good, as often."""
    for number in range(many):
        shop.orders.send(f'{{"id": "o{number}", "fail": "the gate is shut"}}')
    handle_all(shop)
    assert len(shop.orders.dead_letters) == many
    shop.ran.clear()


def handle_all(shop: ModuleType) -> list[Kind]:
    """Handles what is in the queue, one by one."""
    kinds = []
    for message in shop.orders.receive(100, 0.0, 30.0):
        end = shop.consumer.handle(message)
        shop.orders.settle([(message, end)])
        kinds.append(end.kind)
    return kinds


@BOTH
def test_i1_a_redriven_message_runs_again_once_and_its_duplicates_do_not(
    here: Command, tmp_path: Path, which: str
) -> None:
    with imported(tmp_path) as shop:
        make_dead_letters(shop, 2)
        ran = here("redrive", f"{shop.__name__}:{which}", "--id", "INC-7", "--yes", "--json")
        assert (ran.code, ran.err) == (ExitCode.OK, "")
        assert ran.data == {
            "consumer": "ship",
            "queue": "orders",
            "id": "INC-7",
            "parked": False,
            "moved": 2,
            "most": 1_000,
            "stopped": False,
        }
        assert shop.orders.dead_letters == []
        assert handle_all(shop) == [Kind.DEAD_LETTER] * 2, "the gate is still shut"
        assert sorted(shop.ran) == ["o0", "o1"]
        again = here("redrive", f"{shop.__name__}:{which}", "--id", "INC-7", "--yes", "--json")
        assert again.data["moved"] == 2
        assert handle_all(shop) == [Kind.DEAD_LETTER] * 2
        assert sorted(shop.ran) == ["o0", "o1"], "the same ID opens a key once"
        other = here("redrive", f"{shop.__name__}:{which}", "--yes", "--json")
        assert other.data["id"] != "INC-7"
        handle_all(shop)
        assert sorted(shop.ran) == ["o0", "o0", "o1", "o1"]


def test_most_limits_it_and_the_oldest_go_first(here: Command, tmp_path: Path) -> None:
    with imported(tmp_path) as shop:
        make_dead_letters(shop, 3)
        ran = here("redrive", f"{shop.__name__}:consumer", "--most", "2", "--yes")
        assert ran.out.startswith("2 dead letters moved back into orders, as redrive ")
        (left,) = shop.orders.dead_letters
        assert left.json()["id"] == "o2"
        assert [m.json()["id"] for m in shop.orders.receive(9, 0.0, 1.0)] == ["o0", "o1"]


@BOTH
def test_a_letter_that_fails_again_meanwhile_is_not_moved_twice(
    here: Command, tmp_path: Path, which: str
) -> None:
    """The consumer handles each message as soon as it is back, and its handler still fails."""
    with imported(tmp_path) as shop:
        make_dead_letters(shop, 3)
        send = shop.orders.send

        def sent(*args: Any, **options: Any) -> str:
            id: str = send(*args, **options)
            handle_all(shop)
            return id

        shop.orders.send = sent
        ran = here("redrive", f"{shop.__name__}:{which}", "--yes", "--json")
        assert ran.data["moved"] == 3
        assert sorted(shop.ran) == ["o0", "o1", "o2"]


@BOTH
def test_parked_messages_are_moved_by_their_own_option(
    here: Command, tmp_path: Path, which: str
) -> None:
    with imported(tmp_path) as shop:
        make_dead_letters(shop, 1)
        shop.orders.parked = [Message(b'{"id": "p0"}', "orders")]
        ran = here("redrive", f"{shop.__name__}:{which}", "--parked", "--yes")
        assert ran.out.startswith("1 parked message moved back into orders")
        (back,) = shop.orders.receive(9, 0.0, 1.0)
        assert REDRIVE_HEADER not in back.headers
        assert (len(shop.orders.dead_letters), shop.orders.parked) == (1, [])


def test_a_signal_ends_it_and_says_how_to_go_on(here: Command, tmp_path: Path) -> None:
    with imported(tmp_path) as shop:
        shop.orders.dead_letters = [Message(b"{}", "orders") for _ in range(250)]
        send = shop.orders.send

        def interrupted(*args: Any, **options: Any) -> str:
            if len(shop.orders) == 99:
                handler = signal.getsignal(signal.SIGTERM)
                signal.pthread_kill(main, signal.SIGTERM)
                wait_until(lambda: signal.getsignal(signal.SIGTERM) != handler, "it is handled")
            id: str = send(*args, **options)
            return id

        shop.orders.send = interrupted
        main = threading.get_ident()
        ran = here("redrive", f"{shop.__name__}:consumer", "--id", "INC-7", "--yes", "--json")
        assert (ran.code, ran.data["moved"], ran.data["stopped"]) == (130, 100, True)
        assert "go on with --id INC-7" in ran.err


SILENT = """
import boto3
from oncekey.queues.sqs import SQSConsumer

class Silent(QuickBroker):
    def redrive(self, most, id, *, parked=False, go_on=None):
        go_on(3)
        print("begun", flush=True)
        threading.Event().wait()
    def close(self): ...

silent = Consumer(once, ship, Silent("orders"), name="ship", **options)
silent_async = AsyncConsumer(
    async_once, ship_async, AsyncMemoryBroker(Silent("orders")), name="ship", **options
)
client = boto3.client(
    "sqs", endpoint_url=os.environ.get("SQS", "http://127.0.0.1:1"), region_name="eu-west-1",
    aws_access_key_id="k", aws_secret_access_key="s",
)
sqs = SQSConsumer(once, ship, "orders", name="ship", client=client, **options)
"""


def document(running: Running) -> Any:
    """The JSON that a command prints over several lines."""
    return json.loads("".join(iter(running.line, "}\n")) + "}")


@pytest.mark.parametrize("which", ["silent", "silent_async"])
def test_a_broker_that_does_not_answer_holds_up_no_signal(
    start: Start, tmp_path: Path, which: str
) -> None:
    write_shop(tmp_path, "shop", SILENT, stop_timeout="200ms")
    words = ("redrive", f"shop:{which}", "--id", "INC-7", "--yes", "--json")
    running = start(*words, **environment_of(tmp_path))
    assert running.line() == "begun\n"
    assert running.end(signal.SIGTERM) == ExitCode.INTERRUPTED
    found = document(running)
    assert (found["moved"], found["stopped"]) == (3, True)
    assert "the broker has not answered for 0.2 s" in running.err.get(timeout=PATIENCE_SECONDS)
    assert "go on with --id INC-7" in running.err.get(timeout=PATIENCE_SECONDS)


def test_an_sqs_endpoint_that_does_not_answer_holds_up_no_signal(
    start: Start, tmp_path: Path
) -> None:
    """Its client waits for a minute, and then tries again."""
    write_shop(tmp_path, "shop", SILENT, stop_timeout="200ms")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = environment_of(tmp_path) | {
            "SQS": f"http://127.0.0.1:{silent.getsockname()[1]}"
        }
        running = start("redrive", "shop:sqs", "--yes", "--json", **environment)
        connection, _ = silent.accept()
        with connection:
            assert running.end(signal.SIGTERM) == ExitCode.INTERRUPTED
            found = document(running)
            assert (found["queue"], found["moved"], found["stopped"]) == (None, 0, True)


def test_it_asks_at_a_terminal_and_says_what_will_happen(executable: str, tmp_path: Path) -> None:
    more = (
        "orders.dead_letters.append(__import__('oncekey.queues').queues.Message(b'{}', 'orders'))"
    )
    write_shop(tmp_path, "shop", more)
    command = [executable, "redrive", "shop:consumer"]
    with at_terminal(command, **environment_of(tmp_path)) as terminal:
        asked = terminal.expect("[y/N]")
        assert "handler RUNS again" in " ".join(asked.split())
        terminal.type("y")
        terminal.expect("1 dead letter moved back into orders")
        assert terminal.wait() == ExitCode.OK


FAILING = """
class Down(QuickBroker):
    def facts(self):
        raise BrokerUnavailable("nothing answers at 127.0.0.1:5672")
down = Consumer(once, ship, Down("down"), name="down", **options)
both = [consumer, mailer]
class Publisher:
    def run(self): ...
    def stop(self): ...
publisher = Publisher()
"""


@pytest.mark.parametrize(
    ("name", "options", "code", "words"),
    [
        ("consumer", (), ExitCode.USAGE, "give --yes"),
        ("consumer", ("--json",), ExitCode.USAGE, "give --yes"),
        ("consumer", ("--yes", "--id", "a\nb"), ExitCode.USAGE, "printable"),
        ("consumer", ("--yes", "--id", "é"), ExitCode.USAGE, "ASCII"),
        ("consumer", ("--yes", "--id", " a"), ExitCode.USAGE, "space"),
        ("consumer", ("--yes", "--id", "x" * 101), ExitCode.USAGE, "1 to 100"),
        ("consumer", ("--yes", "--most", "0"), ExitCode.USAGE, "--most"),
        ("down", ("--yes",), ExitCode.FAILED, "nothing answers"),
        ("both", ("--yes",), ExitCode.USAGE, "list of 2"),
        ("publisher", ("--yes",), ExitCode.USAGE, "no dead letters"),
        ("orders", ("--yes",), ExitCode.USAGE, "name a Consumer"),
    ],
)
def test_what_cannot_be_redriven_is_one_clear_line(
    here: Command, tmp_path: Path, name: str, options: tuple[str, ...], code: int, words: str
) -> None:
    with imported(tmp_path, FAILING) as shop:
        shop.orders.dead_letters = [Message(b"{}", "orders")]
        ran = here("redrive", f"{shop.__name__}:{name}", *options)
        assert len(shop.orders.dead_letters) == 1
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1


def test_moved_messages_carry_the_id(here: Command, tmp_path: Path) -> None:
    with imported(tmp_path) as shop:
        shop.orders.dead_letters = [Message(b"{}", "orders")]
        ran: Any = here("redrive", f"{shop.__name__}:consumer", "--yes", "--json")
        (message,) = shop.orders.receive(1, 0.0, 1.0)
        assert message.headers[REDRIVE_HEADER] == ran.data["id"]
