"""One run of the doctor: which checks are made, and what they found together.

This module owns the order of the checks, the severity of the whole, and its stable form as data. It
prints nothing and exits nowhere; the command does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
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
from oncekey.engine.store_urls import store_module
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
    run = getattr(module, "checkup", None)
    made: Checkup | None
    if run is None:
        scheme = url.partition("://")[0]
        yield CHECKUP.info(f"not checked: the store of {scheme}:// brings no checks")
        made = None
    else:
        made = run(url)
        yield from made.findings
    promised = _guarantee(module, url)
    if promised is not None:
        yield guarantee(promised)
    if made is not None:
        yield from observed(made.runs, horizon)
    app = load_app()
    consumers = consumers_in(app)
    if consumers:
        yield from consumer_findings(consumers, module, url)
    else:
        yield from app_findings(app, module, url, promised, horizon)
    yield from proxy_findings(proxy_files)


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
