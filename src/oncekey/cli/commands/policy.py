"""`oncekey policy`."""

from __future__ import annotations

from typing import Any

import click

from oncekey.cli.command_input import import_object, json_option
from oncekey.cli.output import Output, UsageProblem


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--format",
    "form",
    type=click.Choice(["markdown", "html", "json"]),
    default="markdown",
    show_default=True,
    help="How to write it.",
)
@click.option("--title", default="Idempotency policy", show_default=True, help="Its heading.")
@json_option
def policy(app: str, form: str, title: str, as_json: bool) -> None:
    """Write the idempotency policy that an app's clients should read.

    Imports the app (from the current folder too), looks at its middleware and its routes, and
    writes what holds for each of them: whether a key is required, how it looks, how long it is
    kept, what is compared, which refusals there are and what to do about them. The middleware
    serves the same as a page at /idempotency-policy; to publish it elsewhere, give the middleware
    its address as policy_url. Refusals link to it.

    \b
    Examples:
      oncekey policy shop.main:app > docs/idempotency.md
      oncekey policy shop.main:app --format html > static/idempotency.html
      oncekey policy shop.main:app --json
    """
    out = Output(as_json=as_json)
    policy_document, found = _found(app)
    entries = policy_document.policy_entries(found.routes, found.policy)
    if as_json or form == "json":
        out.data(policy_document.as_data(entries, replay_header=found.replay_header))
    elif form == "html":
        out.text(policy_document.as_html(entries, title, replay_header=found.replay_header))
    else:
        out.text(policy_document.as_markdown(entries, title, replay_header=found.replay_header))


def _found(name: str) -> tuple[Any, Any]:
    try:
        from oncekey.http.inspection import policy_discovery, policy_document
    except ImportError as error:
        raise UsageProblem(f"{error}; install oncekey[http]") from error
    return policy_document, policy_discovery.find_policy(import_object(name))
