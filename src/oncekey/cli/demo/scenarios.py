"""The six scenarios, one function each (the crash has two, one per level).

Each tells what it does in a few lines and returns what it saw as a Scene. None of them sleeps to
be right: they go on when somebody says so (an event, a word on a pipe) or when the library's own
`wait=` ends. Servers are separate `Once` objects, so nobody answers from another one's memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from oncekey import Once
from oncekey.cli.demo.bodies import Held, ask_provider, charge, declined, keyed, plain
from oncekey.cli.demo.scene import Answer, Counts, Got, Scene, answer_of
from oncekey.cli.demo.stage import PATIENCE_SECONDS, WAIT, Stage
from oncekey.cli.demo.victim import HIDE_SECONDS, RETRY_SAFE

Scenario = Callable[[Stage], Scene]


def retry_after_success(stage: Stage) -> Scene:
    order = stage.order("1")
    body = plain(stage.provider, order)
    first, second = stage.server(), stage.server()
    answers = (
        answer_of("first", lambda: charge(first, order, body), "but the answer was lost"),
        answer_of("retry", lambda: charge(second, order, body), "from another server"),
        answer_of("again", lambda: charge(second, order, body)),
    )
    return Scene(
        "1",
        "Retry after success",
        "The charge succeeds, but the network loses the answer. The client retries twice.",
        order,
        answers,
        (Got.RAN, Got.REPLAYED, Got.REPLAYED),
        stage.provider.counts(order),
    )


def concurrent_retries(stage: Stage) -> Scene:
    order = stage.order("2")
    held = Held(stage.provider, order)
    body = plain(stage.provider, order)
    one, two, three = stage.server(), stage.server(), stage.server()
    together = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def retry(who: str, server: Once) -> Answer:
        together.wait()
        return answer_of(who, lambda: charge(server, order, body))

    def patient() -> Answer:
        return answer_of("B, wait=", lambda: charge(three, order, body, wait=WAIT), "after waiting")

    with ThreadPoolExecutor(4) as callers:
        try:
            first = callers.submit(answer_of, "first", lambda: charge(one, order, held))
            held.wait_until_inside()
            retries = callers.submit(retry, "retry A", two), callers.submit(retry, "retry B", three)
            refused = [call.result() for call in retries]
            waiting = callers.submit(patient)
        finally:
            held.let_go()
        answers = (first.result(), *refused, waiting.result())
    return Scene(
        "2",
        "Two retries while the first is in flight",
        "Two retries arrive at the same moment while the first call still runs. One of them "
        "comes back with wait=.",
        order,
        answers,
        (Got.RAN, Got.IN_FLIGHT, Got.IN_FLIGHT, Got.REPLAYED),
        stage.provider.counts(order),
    )


def crash_at_most_once(stage: Stage) -> Scene:
    order = stage.order("3a")
    body = keyed(stage.provider, order)
    server = stage.server()
    recover = ask_provider(stage.provider)
    killed = _kill(stage, "charge", order)
    at_once = answer_of("retry", lambda: charge(server, order, body))
    stage.tell("waiting for the dead owner's lease to end")
    later = answer_of("after lease", lambda: charge(server, order, body, wait=WAIT))
    asked = answer_of(
        "recover=", lambda: charge(server, order, body, recover=recover), "it found the charge"
    )
    return Scene(
        "3a",
        "Crash, retry_safe=False (the default)",
        "The server charges the card and is killed (SIGKILL) before it can store that. Nobody "
        "runs it again; recover= asks the provider.",
        order,
        (killed, at_once, later, asked),
        (Got.KILLED, Got.IN_FLIGHT, Got.UNKNOWN, Got.REPLAYED),
        stage.provider.counts(order),
    )


def crash_fenced(stage: Stage) -> Scene:
    order = stage.order("3b")
    body = keyed(stage.provider, order)
    server = stage.server()
    killed = _kill(stage, "charge", order, RETRY_SAFE)
    at_once = answer_of("retry", lambda: charge(server, order, body, retry_safe=True))
    stage.tell("waiting for the dead owner's lease to end")
    later = answer_of(
        "after lease",
        lambda: charge(server, order, body, retry_safe=True, wait=WAIT),
        "took over",
    )
    again = answer_of("again", lambda: charge(server, order, body, retry_safe=True))
    return Scene(
        "3b",
        "Crash, retry_safe=True",
        "The same crash, but the body sends a child key. The next retry takes over, asks the "
        "provider again, and is given the first charge.",
        order,
        (killed, at_once, later, again),
        (Got.KILLED, Got.IN_FLIGHT, Got.RAN, Got.REPLAYED),
        stage.provider.counts(order),
        Counts(asked=2, acted=1),
    )


def other_body(stage: Stage) -> Scene:
    order = stage.order("4")
    held = Held(stage.provider, order)
    body = plain(stage.provider, order)
    one, two = stage.server(), stage.server()

    def cheaper(who: str, note: str) -> Answer:
        return answer_of(who, lambda: charge(two, order, body, cents=100), note)

    with ThreadPoolExecutor(1) as callers:
        try:
            first = callers.submit(answer_of, "49.00", lambda: charge(one, order, held))
            held.wait_until_inside()
            during = cheaper("1.00", "while in flight")
        finally:
            held.let_go()
        done = first.result()
    after = cheaper("1.00", "when finished")
    same = answer_of("49.00", lambda: charge(two, order, body))
    return Scene(
        "4",
        "Same key, other body",
        "A client bug reuses the key of a 49.00 charge for 1.00: once while that charge runs, "
        "once after it.",
        order,
        (done, during, after, same),
        (Got.RAN, Got.MISMATCH, Got.MISMATCH, Got.REPLAYED),
        stage.provider.counts(order),
    )


def terminal_failure(stage: Stage) -> Scene:
    order = stage.order("5")
    body = declined(stage.provider, order)
    one, two = stage.server(), stage.server()
    answers = (
        answer_of("first", lambda: charge(one, order, body)),
        answer_of("retry", lambda: charge(two, order, body)),
    )
    return Scene(
        "5",
        "Retry of a terminal failure",
        "The provider declines the card for good. The client retries all the same.",
        order,
        answers,
        (Got.FAILED, Got.STORED_ERROR),
        stage.provider.counts(order),
    )


def message_redelivered(stage: Stage) -> Scene:
    order = stage.order("6")
    body = plain(stage.provider, order)
    server = stage.server()
    stage.queue.send(order)
    killed = _kill(stage, "consume", order)
    stage.tell("waiting for the queue to deliver again")
    message = stage.queue.receive(order, hide_for=HIDE_SECONDS, patience=PATIENCE_SECONDS)
    who = f"delivery {message.delivery}"
    answer = answer_of(who, lambda: charge(server, order, body), "acknowledged")
    acknowledged = stage.queue.acknowledge(message) and stage.queue.depth(order) == 0
    return Scene(
        "6",
        "Message redelivered after a crash",
        "A consumer does its work and is killed (SIGKILL) before it acknowledges. The queue "
        "delivers the message again.",
        order,
        (killed, answer),
        (Got.KILLED, Got.REPLAYED),
        stage.provider.counts(order),
        problems=() if acknowledged else ("the message is still in the queue",),
    )


SCENARIOS: tuple[Scenario, ...] = (
    retry_after_success,
    concurrent_retries,
    crash_at_most_once,
    crash_fenced,
    other_body,
    terminal_failure,
    message_redelivered,
)


def _kill(stage: Stage, role: str, order: str, *options: str) -> Answer:
    """Let a process get as far as it should, and kill it there."""
    stage.tell("starting a process to be killed")
    victim = stage.victim(role, order, *options)
    victim.stands_still()
    victim.kill()
    who = "delivery 1" if role == "consume" else "first"
    return Answer(who, Got.KILLED, f"process {victim.pid}")
