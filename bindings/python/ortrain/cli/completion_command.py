"""``ortrain completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ortrain.cli import app


@app.command(
    "completion",
    """
    ortrain completion bash >> ~/.bashrc
    ortrain completion zsh >> ~/.zshrc
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes commands, options and files in a shell."""
    found = get_completion_class(shell)
    assert found is not None
    script = found(app.group, {}, "ortrain", "_ORTRAIN_COMPLETE").source()
    if shell == "zsh":  # zsh has no compdef, and completes nothing, until compinit has run
        first, _, rest = script.partition("\n")
        script = f"{first}\n(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}\n{rest}"
    click.echo(script)
