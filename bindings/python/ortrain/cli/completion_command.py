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
    click.echo(found(app.group, {}, "ortrain", "_ORTRAIN_COMPLETE").source())
