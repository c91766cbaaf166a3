"""The process that is killed: `python -m oncekey.cli.demo.victim ROLE FOLDER ORDER [retry-safe]`.

`charge` claims, charges, and stands still before it can finish. `consume` receives a message,
lets its work be stored, and stands still before it can acknowledge. Both say "ready" then.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from oncekey import Attempt
from oncekey.cli.demo.bodies import Receipt, charge, keyed, plain
from oncekey.cli.demo.stage import PATIENCE_SECONDS, open_once, provider_at, queue_at

#: How long a received message stays hidden from the next consumer.
HIDE_SECONDS = 0.5
RETRY_SAFE = "retry-safe"


def main(role: str, folder: Path, order: str, *options: str) -> None:
    provider = provider_at(folder)
    once = open_once(folder)
    if role == "charge":

        def body(attempt: Attempt) -> Receipt:
            receipt = keyed(provider, order)(attempt)
            stand_still()
            return receipt

        charge(once, order, body, retry_safe=RETRY_SAFE in options)
    else:
        queue_at(folder).receive(order, hide_for=HIDE_SECONDS, patience=PATIENCE_SECONDS)
        charge(once, order, plain(provider, order))
        stand_still()


def stand_still() -> None:
    """Say so and wait for the kill. Should the demo itself die first, its end of the pipe closes
    and we leave as abruptly as a kill would make us."""
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
