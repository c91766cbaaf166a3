"""Messages whose keys are claimed together: which ones, and the work on each of them so far."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from oncekey.core.errors import OncekeyError
from oncekey.engine.batches.batch import Sent
from oncekey.engine.jobs import Job
from oncekey.engine.port import AnyPort
from oncekey.queues.consumer_settings import ConsumerPlan
from oncekey.queues.delivery_flow import DeliveryEffect, RunHandler, delivery
from oncekey.queues.disposition import Disposition
from oncekey.queues.work_in_hand import Entry

Flow = Generator[DeliveryEffect, Any, Disposition]


class ClaimedDelivery(NamedTuple):
    """A delivery whose key is claimed with others: its flow so far, and the job. `sent` is the
    reply to the claim."""

    flow: Flow
    effect: RunHandler
    job: Job
    sent: Sent


class ClaimBatch:
    """The messages of a batch whose keys are to be claimed together. One that is not of the usual
    kind is left out, and claims by itself: it has no key, was moved back from a dead-letter queue,
    has a twin among the others, or its outcome is known here already."""

    def __init__(self, port: AnyPort, plan: ConsumerPlan, entries: Sequence[Entry]) -> None:
        self._begun: dict[bytes, tuple[Entry, Flow, RunHandler, Job]] = {}
        name, scope = plan.settings.name, plan.scope
        for entry in entries:
            flow = delivery(entry.message, plan)
            try:
                effect = next(flow)
                if not isinstance(effect, RunHandler) or port.remembers(name, effect.key, scope):
                    continue
                job = port.job(
                    name,
                    effect.key,
                    scope=scope,
                    request=effect.request,
                    options=plan.options,
                    origin=plan.origin,
                )
            except (StopIteration, OncekeyError):
                continue  # found again, and told, when the message is handled
            self._begun.setdefault(job.claim.id, (entry, flow, effect, job))

    @property
    def jobs(self) -> list[Job]:
        return [job for *_, job in self._begun.values()]

    def claimed(self, replies: Sequence[Sent]) -> None:
        """The claims were sent: these are the replies."""
        for (entry, flow, effect, job), sent in zip(self._begun.values(), replies, strict=True):
            entry.key = effect.key
            entry.claimed = ClaimedDelivery(flow, effect, job, sent)
