"""`oncekey exporter`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oncekey.cli.command_input import STORE_ENV, duration, extra, json_option
from oncekey.cli.output import ExitCode, Output, UsageProblem, error_line
from oncekey.cli.password_redaction import redact_url
from oncekey.cli.signals import stop_on_signal
from oncekey.cli.store_access import has_records, open_store, warn_of_move
from oncekey.core.duration import human
from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import Store
from oncekey.metrics.event_counts import store_name

if TYPE_CHECKING:
    from oncekey.metrics.exporter import StoreCollector

EVERY_MIN_US = 1_000_000
EVERY_MAX_US = 3_600_000_000
EVERY_DEFAULT = "15s"
PORT_DEFAULT = 9464
HOST_DEFAULT = "127.0.0.1"
ALERTS, GRAFANA = "alerts.yml", "grafana.json"


@click.command()
@click.argument("url", metavar="[URL]", required=False, envvar=STORE_ENV)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT_DEFAULT,
    show_default=True,
    help="The port of /metrics; 0 takes a free one.",
)
@click.option("--host", default=HOST_DEFAULT, show_default=True, help="The address to listen on.")
@click.option(
    "--every",
    callback=duration(EVERY_MIN_US, EVERY_MAX_US),
    default=EVERY_DEFAULT,
    show_default=True,
    metavar="DURATION",
    help="How often the store is read, however often it is scraped.",
)
@click.option("--name", help="The label `store`; by default what the application's metrics have.")
@click.option(
    "--workers",
    type=click.Path(),
    metavar="FOLDER",
    help="Also serve what the application's workers count: their PROMETHEUS_MULTIPROC_DIR.",
)
@click.option("--once", is_flag=True, help="Read the store, print the metrics, and stop.")
@click.option("--alerts", is_flag=True, help="Print alert rules for Prometheus, and stop.")
@click.option("--grafana", is_flag=True, help="Print a dashboard for Grafana, and stop.")
@json_option
def exporter(
    url: str | None,
    port: int,
    host: str,
    every: int,
    name: str | None,
    workers: str | None,
    once: bool,
    alerts: bool,
    grafana: bool,
    as_json: bool,
) -> int:
    """Serve the metrics of a store to Prometheus.

    These are the figures that one process per store reports: open keys and their ages, unknown
    keys, size, what the sweeper has left. The counters of an application are its own, see
    PrometheusMetrics; with --workers they are served here too.

    The store is read every --every. It stays until Ctrl-C or SIGTERM; while the store is down
    oncekey_store_up is 0. --json prints one document per reading, a line each. URL may be left out
    if ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey exporter postgresql://monitor@db/shop
      oncekey exporter sqlite:///payments.db --once
      oncekey exporter --alerts > oncekey-alerts.yml
      oncekey exporter --grafana > oncekey-dashboard.json
    """
    out = Output(as_json=as_json)
    if alerts or grafana:
        if alerts and grafana:
            raise click.UsageError("--alerts and --grafana are two files; choose one")
        file = files("oncekey.metrics") / "files" / (ALERTS if alerts else GRAFANA)
        out.text(file.read_text(encoding="utf-8"))
        return ExitCode.OK
    if url is None:
        raise click.UsageError(f"no store: give its URL, or set {STORE_ENV}")
    if once:
        has_records(url)
    if workers is not None and not Path(workers).is_dir():
        raise UsageProblem(f"--workers: there is no folder {workers}")
    with closing(open_store(url)) as store:
        collector = _collector(store, name or store_name(store))
        if once:
            with suppress(StoreUnavailable):  # it is said below
                warn_of_move(store)
            return _print_once(out, url, collector, workers)
        _serve(out, url, collector, _reader(url, store, collector), workers, host, port, every)
    return ExitCode.OK


def _reader(
    url: str, store: Store, collector: StoreCollector
) -> Callable[[], StoreUnavailable | None]:
    """A function that reads the store, and returns the error if it did not answer. Until it did
    once, it is inspected first, since reading could make what is not there."""
    is_inspected = False

    def read() -> StoreUnavailable | None:
        nonlocal is_inspected
        if not is_inspected:
            try:
                has_records(url)
                warn_of_move(store)
            except StoreUnavailable as error:
                return error
            is_inspected = True
        return collector.read()

    return read


def _collector(store: Store, name: str) -> StoreCollector:
    with extra("prometheus", "the exporter", ("prometheus_client",)):
        from oncekey.metrics.exporter import StoreCollector
    return StoreCollector(store, name)


def _print_once(out: Output, url: str, collector: StoreCollector, workers: str | None) -> int:
    from oncekey.metrics.exporter import make_registry, text_of

    failure = collector.read()
    if failure is not None:
        raise failure
    if out.as_json:
        out.data(_document(url, collector))
    else:
        out.text(text_of(make_registry(collector, workers)))
    return ExitCode.OK


def _serve(
    out: Output,
    url: str,
    collector: StoreCollector,
    read: Callable[[], StoreUnavailable | None],
    workers: str | None,
    host: str,
    port: int,
    every: int,
) -> None:
    from oncekey.metrics.exporter import make_registry, serve

    with stop_on_signal() as stop:
        failure = read()
        taken, end = serve(make_registry(collector, workers), host, port)
        try:
            if not out.as_json:
                out.line(f"metrics of {redact_url(url)} at http://{host}:{taken}/metrics")
            while not stop.requested:
                if failure is not None:
                    error_line(f"{failure}; it is read again in {human(every)}")
                if out.as_json:
                    out.event({**_document(url, collector), "port": taken})
                stop.wait(every / 1_000_000)
                if not stop.requested:
                    failure = read()
        finally:
            end()


def _document(url: str, collector: StoreCollector) -> dict[str, Any]:
    """A reading as plain data: names without the prefix that all share."""
    from oncekey.metrics.store_gauges import PREFIX, gauges_of

    reading = collector.reading
    figures: dict[str, Any] = {}
    for gauge in gauges_of(reading) if reading is not None else ():
        name = gauge.name.removeprefix(PREFIX)
        share = f"_p{float(gauge.quantile) * 100:g}" if gauge.quantile else ""
        figures[name + share] = gauge.value
    return {"store": redact_url(url), "up": reading is not None, "metrics": figures}
