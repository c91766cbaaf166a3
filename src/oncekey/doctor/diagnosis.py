"""One run of the doctor: which checks are made, and what they found together.

This module owns the order of the checks, the severity of the whole, and its stable form as data. It
prints nothing and exits nowhere; the command does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import OncekeyError
from oncekey.core.guarantees import Guarantee
from oncekey.doctor.app_checks import APP_CHECKS, app_findings
from oncekey.doctor.consumer_checks import CONSUMER_CHECKS, consumer_findings, consumers_in
from oncekey.doctor.observed_checks import (
    CHECKUP,
    OBSERVED_CHECKS,
    RETRY_HORIZON_DEFAULT,
    guarantee,
    observed,
)
from oncekey.doctor.proxy_checks import PROXY_CHECKS, proxy_findings
from oncekey.engine.store_urls import moving_urls, store_module
from oncekey.stores.inspection import Check, Checkup, Finding, Severity

# The version of the data; members are added to it without a new one, but never renamed or removed.
FORMAT: Final = 1
# The checks that are no store's own. A store's package has its own in CHECKS.
COMMON_CHECKS: Final[tuple[Check, ...]] = (
    *OBSERVED_CHECKS,
    *APP_CHECKS,
    *CONSUMER_CHECKS,
    *PROXY_CHECKS,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity:
        """The worst severity that occurs."""
        found = (finding.severity for finding in self.findings)
        return max(found, key=lambda severity: severity.rank, default=Severity.OK)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What is broken, then what is a warning."""
        bad = [one for one in self.findings if one.severity.rank >= Severity.WARNING.rank]
        return tuple(sorted(bad, key=lambda one: -one.severity.rank))

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def is_healthy(self, *, strict: bool = False) -> bool:
        """False if something is broken; if `strict`, also for a warning."""
        limit = Severity.WARNING if strict else Severity.BROKEN
        return self.worst.rank < limit.rank

    def as_data(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "worst": str(self.worst),
            "counts": {str(severity): self.count(severity) for severity in Severity},
            "findings": [
                {**asdict(finding), "severity": str(finding.severity)} for finding in self.findings
            ],
        }


def diagnose(
    url: str,
    *,
    app: Any = None,
    load_app: Callable[[], Any] | None = None,
    proxy_files: Iterable[str] = (),
    retry_horizon: Duration = RETRY_HORIZON_DEFAULT,
) -> Diagnosis:
    """Check a store, and if they are given an app and configuration files of proxies in front of
    it. Raises StoreUnavailable if the store does not answer.

    app            what uses the store: an ASGI or WSGI app, or its middleware; a consumer of a
                   queue, or a list of them
    load_app       gives the app, after the store was checked: importing an app can make a store
    proxy_files    configuration files of nginx, HAProxy, Envoy, Istio or Traefik
    retry_horizon  the longest time after which a client may still retry
    """
    horizon = microseconds(retry_horizon, name="retry_horizon")
    load = load_app or (lambda: app)
    return Diagnosis(tuple(_findings(url, load, proxy_files, horizon)))


def _findings(
    url: str, load_app: Callable[[], Any], proxy_files: Iterable[str], horizon: int
) -> Iterator[Finding]:
    module = store_module(url)
    promised = yield from _findings_of_stores(url, horizon)
    app = load_app()
    consumers = consumers_in(app)
    if consumers:
        yield from consumer_findings(consumers, module, url)
    else:
        yield from app_findings(app, module, url, promised, horizon)
    yield from proxy_findings(proxy_files)


def _findings_of_stores(url: str, horizon: int) -> Generator[Finding, None, Guarantee | None]:
    """Check the store, or each of the two that keys move between. Returns what it can promise; of
    two stores the weaker one counts."""
    pair = moving_urls(url)
    if pair is None:
        return (yield from _findings_of_store(url, horizon, ""))
    old = yield from _findings_of_store(pair[0], horizon, "the old store: ")
    new = yield from _findings_of_store(pair[1], horizon, "the new store: ")
    return None if old is None or new is None else min(old, new, key=lambda one: one.level)


def _findings_of_store(
    url: str, horizon: int, which: str
) -> Generator[Finding, None, Guarantee | None]:
    """Check one store; every finding begins with which one it is."""
    module = store_module(url)
    run = getattr(module, "checkup", None)
    found: list[Finding] = []
    made: Checkup | None = None
    if run is None:
        scheme = url.partition("://")[0]
        found.append(CHECKUP.info(f"not checked: the store of {scheme}:// brings no checks"))
    else:
        made = run(url)
        found += made.findings
    promised = _guarantee(module, url)
    if promised is not None:
        found.append(guarantee(promised))
    if made is not None:
        found += observed(made.runs, horizon)
    for finding in found:
        yield replace(finding, what=which + finding.what)
    return promised


def _guarantee(module: Any, url: str) -> Guarantee | None:
    """What the store can promise; None if that cannot be read, of which a check has told why."""
    inspect = getattr(module, "inspect", None)
    if inspect is None:
        return None
    try:
        found: Guarantee = inspect(url).guarantee
    except OncekeyError:
        return None
    return found
