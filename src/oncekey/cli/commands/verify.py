"""`oncekey verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oncekey.cli.command_input import duration, extra, json_option
from oncekey.cli.output import ExitCode
from oncekey.cli.verify_plan import (
    CONCURRENCY_RANGE,
    KEEP_RANGE_US,
    REQUESTS_RANGE,
    SECONDS_RANGE,
    SLOW_RANGE_US,
    VerifyOptions,
)
from oncekey.verify.profile import PROFILES
from oncekey.verify.verdict import Guarantee

_PACKAGES = frozenset({"h11", "jinja2"})
_SLUGS = [guarantee.slug for guarantee in Guarantee]
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("url", metavar="[URL]", required=False)
@click.option("-X", "--request", "method", metavar="METHOD", help="POST by default.")
@click.option("-H", "--header", "headers", metavar="LINE", multiple=True, help="As in curl.")
@click.option("-d", "--data", metavar="BODY", multiple=True, help="As in curl; @FILE reads one.")
@click.option("--config", type=_FILE, metavar="FILE", help="Read all of this from a TOML file.")
@click.option("--caller", metavar="LINE", multiple=True, help="A header that says who calls.")
@click.option("--other-caller", metavar="LINE", multiple=True, help="The same for somebody else.")
@click.option("--bad-caller", metavar="LINE", multiple=True, help="Credentials to be refused.")
@click.option(
    "--variant",
    "variants",
    metavar="NAME=BODY",
    multiple=True,
    help="Another request: its body, or /path, or both: 'slow={...}', 'other-path=/refunds'.",
)
@click.option("--openapi", metavar="DOCUMENT", help="Generate requests from this file or URL.")
@click.option("--operation", metavar="NAME", help="In it: an operationId, or 'POST /charges'.")
@click.option(
    "--path-parameter",
    "path_parameters",
    metavar="NAME=VALUE",
    multiple=True,
    help="In its path: something that exists.",
)
@click.option("--field", "fields", metavar="NAME=VALUE", multiple=True, help="In generated bodies.")
@click.option("--key-header", metavar="NAME", help="Idempotency-Key by default.")
@click.option("--quoted-key", is_flag=True, help='Send keys in quotes: "...".')
@click.option(
    "--slow",
    metavar="DURATION",
    callback=duration(*SLOW_RANGE_US),
    help="About how long the handler of the slow variant works.",
)
@click.option(
    "--keep",
    metavar="DURATION",
    callback=duration(*KEEP_RANGE_US),
    help="How long a key is remembered, if that is short enough to wait for.",
)
@click.option("--count-url", metavar="URL", help="Count effects by a JSON document.")
@click.option("--count-path", metavar="PATH", help="Where its number or list is: $.charges.")
@click.option("--count-match", metavar="TEXT", help="Count elements with this: {{unique}}.")
@click.option("--count-header", metavar="LINE", multiple=True, help="For it; else the caller's.")
@click.option("--count-command", metavar="COMMAND", help="Count effects by what this prints.")
@click.option("--count-sql", metavar="QUERY", help="Count effects by this; :unique is bound.")
@click.option("--count-database", metavar="URL", help="sqlite:///... or postgresql://...")
@click.option("--count-id", metavar="PLACE", multiple=True, help="Where ids are: $.id.")
@click.option("--profile", type=click.Choice(list(PROFILES)), help="ietf by default.")
@click.option(
    "--only", type=click.Choice(_SLUGS), metavar="GUARANTEE", multiple=True, help="Only this one."
)
@click.option(
    "--skip", type=click.Choice(_SLUGS), metavar="GUARANTEE", multiple=True, help="Not this one."
)
@click.option("--max-requests", type=REQUESTS_RANGE, metavar="N", help="2000 by default.")
@click.option("--max-seconds", type=SECONDS_RANGE, metavar="SECONDS", help="120 by default.")
@click.option("--concurrency", type=CONCURRENCY_RANGE, metavar="N", help="100 by default.")
@click.option("--timeout", type=SECONDS_RANGE, metavar="SECONDS", help="Of a response; 30.")
@click.option("--patience", type=SECONDS_RANGE, metavar="SECONDS", help="Of a retry; 30.")
@click.option("--yes", is_flag=True, help="Do not ask before a host that is not this one.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option("--strict", is_flag=True, help="Exit with 4 for what is not observable too.")
@click.option("--junit", type=_FILE, metavar="FILE", help="Also write a JUnit file.")
@click.option("--html", type=_FILE, metavar="FILE", help="Also write a page for people.")
@json_option
@click.pass_context
def verify(context: click.Context, /, **options: Any) -> None:
    """Check from outside whether an HTTP API is safe to retry.

    Sends real requests to URL, in any language's API: duplicates at the same moment, retries after
    lost responses, other bodies, other callers, bad keys. Says for each guarantee whether it holds,
    is violated (with the exchanges as curl lines), or cannot be observed from outside (and what to
    give so that it can). The request is given as in curl, or by a TOML file.

    \b
    {{unique}}, {{number}} and {{key}} in the body, path and headers are new for each operation.
    $NAME in a header is read from the environment, so that no token is on the command line.

    Every request with a new key has its effect, up to hundreds of times: use a test system. It asks
    before anything but the loopback. The exit code is 4 if a guarantee is violated.

    \b
    Examples:
      oncekey verify http://127.0.0.1:8000/charges -d '{"order": "{{unique}}"}' --dry-run
      oncekey verify http://127.0.0.1:8000/charges -d @charge.json --caller 'X-Api-Key: $API_KEY'
      oncekey verify http://127.0.0.1:8000 --openapi openapi.json --operation 'POST /charges'
      oncekey verify --config charges.toml --html report.html
      oncekey verify --config charges.toml --yes --junit verify.xml --strict
    """
    with extra("verify", "verify", _PACKAGES):
        from oncekey.cli.verify_run import run_verify
    code = run_verify(VerifyOptions(**options))
    if code is not ExitCode.OK:
        context.exit(code)
