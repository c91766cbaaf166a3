"""`oncekey doctor`."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import click

from oncekey.cli.command_options import duration, json_option, url_argument
from oncekey.cli.doctor_report import print_diagnosis
from oncekey.cli.exit_codes import ExitCode
from oncekey.cli.import_object import import_object
from oncekey.cli.open_store import UsageProblem, refuse_memory
from oncekey.cli.output import Output
from oncekey.cli.redact import redact_url
from oncekey.core.policy import KEEP_MAX_US
from oncekey.doctor.diagnosis import Diagnosis, diagnose
from oncekey.doctor.observed_checks import RETRY_HORIZON_DEFAULT

_HORIZON_MIN_US = 1_000_000


@click.command()
@url_argument
@click.option("--app", "app_name", metavar="MODULE:APP", help="Also check this app or consumer.")
@click.option(
    "--proxy-config",
    "proxy_files",
    metavar="FILE",
    multiple=True,
    help="Also check this configuration of nginx, HAProxy, Envoy, Istio or Traefik; repeatable.",
)
@click.option(
    "--retry-horizon",
    metavar="DURATION",
    default=RETRY_HORIZON_DEFAULT,
    show_default=True,
    callback=duration(_HORIZON_MIN_US, KEEP_MAX_US),
    help="The longest time after which a client may still retry.",
)
@click.option("--strict", is_flag=True, help="Exit with 4 for a warning too.")
@click.option("--all", "show_all", is_flag=True, help="Also print why, where nothing is wrong.")
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    url: str,
    app_name: str | None,
    proxy_files: tuple[str, ...],
    retry_horizon: int,
    strict: bool,
    show_all: bool,
    as_json: bool,
) -> None:
    """Find what silently breaks the guarantee.

    Checks the store behind the URL: its settings, standbys, pooler or file system, its tables and
    indexes, vacuum and sweeper, and what its newest records tell of lease and keep. With --app
    also the app's guards, callers and options, or whether a consumer of a queue may begin, with
    --proxy-config what a proxy in front of it does to a POST. Each finding says what was found, why
    it matters and how to mend it.

    It reads only, within seconds, and no large table as a whole. The store is neither created nor
    migrated; importing the app runs its module. Nothing that was not checked is reported as good.
    The exit code is 4 if something is broken.

    \b
    Examples:
      oncekey doctor "postgresql://app@db/shop?schema=oncekey"
      oncekey doctor sqlite:///payments.db --app shop.main:app --strict
      oncekey doctor sqlite:///payments.db --app shop.orders:consumer
      oncekey doctor "$DATABASE_URL" --app shop.main:app --proxy-config nginx.conf --json
    """
    refuse_memory(url)
    out = Output(as_json=as_json)
    with out.progress("checking"):
        found = _diagnose(url, app_name, proxy_files, retry_horizon)
    if as_json:
        healthy = found.is_healthy(strict=strict)
        out.data({"store": redact_url(url), "healthy": healthy, **found.as_data()})
    else:
        print_diagnosis(found, out, show_all=show_all)
    if not found.is_healthy(strict=strict):
        context.exit(ExitCode.UNHEALTHY)


def _diagnose(
    url: str, app_name: str | None, proxy_files: tuple[str, ...], horizon: int
) -> Diagnosis:
    try:
        return diagnose(
            url,
            load_app=None if app_name is None else partial(import_object, app_name),
            proxy_files=proxy_files,
            retry_horizon=timedelta(microseconds=horizon),
        )
    except ImportError as error:
        raise UsageProblem(f"{error}; install oncekey[http]") from error
