"""`oncekey completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from oncekey.cli.command_input import json_option
from oncekey.cli.output import Output

_NAME = "oncekey"
_VARIABLE = "_ONCEKEY_COMPLETE"  # what click derives from the name
_INSTALL = {
    "bash": 'put into ~/.bashrc:  eval "$(oncekey completion bash)"',
    "zsh": 'put into ~/.zshrc, after compinit:  eval "$(oncekey completion zsh)"',
    "fish": "run once:  oncekey completion fish > ~/.config/fish/completions/oncekey.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print the script that completes commands and options in your shell.

    \b
    Examples:
      eval "$(oncekey completion bash)"
      eval "$(oncekey completion zsh)"
      oncekey completion fish > ~/.config/fish/completions/oncekey.fish
      oncekey completion bash --json
    """
    out = Output(as_json=as_json)
    found = get_completion_class(shell)
    assert found is not None, "click knows every shell of the choice"
    script = found(context.find_root().command, {}, _NAME, _VARIABLE).source()
    if as_json:
        out.data({"shell": shell, "install": _INSTALL[shell], "script": script})
    else:
        out.text(f"# To install: {_INSTALL[shell]}\n{script}")
