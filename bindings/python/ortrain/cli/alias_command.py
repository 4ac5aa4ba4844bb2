"""``ortrain alias``."""

from __future__ import annotations

from pathlib import Path

import click

from ortrain.alias import make_alias
from ortrain.cli import app


@app.command("alias", "ortrain alias lib && LD_LIBRARY_PATH=lib ./program")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@app.as_json
def command(folder: Path, json_output: bool) -> None:
    """Fill DIR with links to the native library and to a small library with onnxruntime's name, which calls it.

    With DIR in the library path (LD_LIBRARY_PATH, or the path stored in the program), programs linked with libonnxruntime run
    on ortrain. Links in DIR are replaced, files are not.
    """
    links = [str(link) for link in make_alias(folder)]
    if json_output:
        app.print_json({"links": links})
    else:
        click.echo("\n".join(links))
