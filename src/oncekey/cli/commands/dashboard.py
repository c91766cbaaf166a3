"""`oncekey dashboard`."""

from __future__ import annotations

import os
import secrets
import webbrowser
from contextlib import closing
from typing import Any, Final

import click

from oncekey.cli.command_input import extra, json_option, url_argument
from oncekey.cli.output import Output, UsageProblem, error_line
from oncekey.cli.password_redaction import redact_url
from oncekey.cli.store_access import has_records, open_store, warn_of_move

HOST_DEFAULT: Final = "127.0.0.1"
PORT_DEFAULT: Final = 8765

_LOOPBACK: Final = frozenset(("127.0.0.1", "localhost", "::1"))
_PACKAGES: Final = frozenset({"starlette", "jinja2", "uvicorn", "anyio", "h11"})
_TOKEN_BYTES: Final = 32


@click.command()
@url_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT_DEFAULT,
    metavar="PORT",
    help=f"{PORT_DEFAULT} by default; 0 is any that is free.",
)
@click.option(
    "--host",
    default=HOST_DEFAULT,
    metavar="ADDRESS",
    help="Where to listen: 127.0.0.1 by default, which only this machine reaches.",
)
@click.option(
    "--token-env",
    metavar="NAME",
    help="The environment variable that holds the token. A random one otherwise.",
)
@click.option("--read-only", is_flag=True, help="Nothing can be decided.")
@click.option("--bodies", is_flag=True, help="Show stored answers, arguments and step values.")
@click.option("--by", default="", metavar="NAME", help="Your name, for the notes of decisions.")
@click.option(
    "--consumer",
    "consumers",
    metavar="MODULE:CONSUMER",
    multiple=True,
    help="Let its parked messages be returned; may be repeated.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open it in the browser.")
@json_option
def dashboard(
    url: str,
    port: int,
    host: str,
    token_env: str | None,
    read_only: bool,
    bodies: bool,
    by: str,
    consumers: tuple[str, ...],
    open_browser: bool,
    as_json: bool,
) -> None:
    """Serve pages that show the store's keys and let you decide them.

    Rates, pending ages, table size; stuck and unknown keys first; search by tag, key, scope,
    operation, route and state; the timeline of each key. Unknown and failed keys can be decided,
    with a reason, which goes into the record. Ctrl-C ends it.

    It prints a link that signs you in once. With --token-env others can sign in too, with the
    token. Stored answers are hidden unless --bodies is given. With --consumer it has a button that
    returns the parked messages of that consumer to their queue, once their keys are decided; the
    consumer is imported, and does not run. URL may be left out if ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey dashboard sqlite:///payments.db --open
      oncekey dashboard postgresql://support@db/shop --read-only
      oncekey dashboard postgresql://support@db/shop --token-env DASHBOARD_TOKEN --bodies
    """
    with extra("dashboard", "the dashboard", _PACKAGES):
        from oncekey.cli.dashboard_server import serve
        from oncekey.dashboard import Dashboard
        from oncekey.dashboard.request_checks import LOOPBACK_HOSTS
    if has_records(url):  # it must not create a store, nor change one of an older release
        with closing(open_store(url)) as store:
            warn_of_move(store)
    app = Dashboard(
        url,
        token=_token(token_env),
        read_only=read_only,
        bodies=bodies,
        by=by,
        hosts=LOOPBACK_HOSTS if host in _LOOPBACK else None,
        consumers=_consumers(consumers),
    )
    _warn_of_host(host)
    out = Output(as_json=as_json)

    def started(address: str) -> None:
        link = address + app.sign_in_path()
        if as_json:
            out.data({"store": redact_url(url), "url": address, "sign_in": link})
        else:
            out.line(f"The dashboard of {redact_url(url)} is at {address}. Ctrl-C ends it.")
            out.line(f"This link signs you in once: {link}")
        if open_browser:
            webbrowser.open(link)

    serve(app, host, port, started)


def _warn_of_host(host: str) -> None:
    if host not in _LOOPBACK:
        error_line(
            f"--host {host}: other machines can reach the dashboard, and without TLS they can "
            "read along; put a proxy with TLS in front of it"
        )


def _consumers(names: tuple[str, ...]) -> list[Any]:
    if not names:
        return []
    from oncekey.cli.consumer_group import consumer_of

    return [consumer_of(name) for name in names]


def _token(name: str | None) -> str:
    if name is None:
        return secrets.token_urlsafe(_TOKEN_BYTES)
    token = os.environ.get(name)
    if not token:
        raise UsageProblem(f"--token-env: the environment variable {name} is not set")
    return token
