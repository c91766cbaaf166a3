"""`python -m oncekey.demo.worker`: the same payments API in a process of its own, to be killed.

It is told what to serve in one line on stdin, says its port in one line on stdout, and then what it
sees. When stdin ends, whoever started it is gone, and it leaves as abruptly as a kill would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oncekey.demo.api.app import open_keys, payments_api
from oncekey.demo.api.paying import Paying
from oncekey.demo.api.routes import Shop
from oncekey.demo.api.rows import Rows
from oncekey.demo.feed import Seen, Watch
from oncekey.demo.keeping import Keeping
from oncekey.demo.serving import Served, bind


async def serve(told: dict[str, Any]) -> None:
    keeping = Keeping(Path(told["folder"]))
    paying = Paying(told["provider"], keeping.provider_secret)
    app = payments_api(Shop(keeping, Rows(keeping.payments), paying), open_keys(told["store"]))
    watched = Watch(app, server=f"worker {os.getpid()}", keeping=keeping, put=_tell_seen)
    served = Served(watched, bind())
    await served.start()
    _tell({"port": served.port})
    await asyncio.Event().wait()


def _tell_seen(seen: Seen) -> None:
    _tell(asdict(seen))


def _tell(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    instructions = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    asyncio.run(serve(instructions))
