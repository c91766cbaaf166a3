"""Runs one probe against one server, with the patience that the server says is needed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.verify.keyed_server import KeyedServer, target

from oncekey.verify.probe import Limits, Probe
from oncekey.verify.profile import IETF
from oncekey.verify.verdict import Fault, Status, Verdict
from oncekey.verify.verification import verify

LIMITS = Limits(concurrency=8, timeout=60.0)


def verdict_on(
    server_type: type[KeyedServer], probe: Probe, limits: Limits = LIMITS, **fields: Any
) -> Verdict:
    """Return the probe's verdict; `fields` are those of the target.

    `effects` may be a function from the server to a counter.
    """

    limits = replace(limits, patience=server_type.patience)

    async def check() -> Verdict:
        async with server_type() as server:
            if callable(fields.get("effects")):
                fields["effects"] = fields["effects"](server)
            done = await verify(target(server, **fields), IETF, [probe], limits=limits)
        return done.verdicts[0]

    return asyncio.run(check())


def assert_fault(verdict: Verdict, fault: Fault) -> None:
    """Exactly this fault was named, and exchanges show it."""
    assert verdict.status is Status.VIOLATED, verdict.summary
    assert [violation.fault for violation in verdict.violations] == [fault], verdict.summary
    assert len(verdict.violations[0].exchanges) > 1
