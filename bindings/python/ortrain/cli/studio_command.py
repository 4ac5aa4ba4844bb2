"""``ortrain studio``."""

from __future__ import annotations

from pathlib import Path

import click

from ortrain.cli import app, serving
from ortrain.cli.numbers import Integer
from ortrain.dashboard.studio import Studio

PORT = 6061


@app.command(
    "studio",
    """
    ortrain studio
    ortrain studio experiments --no-browser
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="[DIR]", default=Path())
@click.option(
    "--port",
    type=Integer(0, 65535),
    help=f"port to listen on, 0 for any free port (default {PORT}, or any free port if it is in use)",
)
@click.option("--open/--no-browser", "browser", default=True, help="open the page in the browser")
@app.as_json
def command(folder: Path, port: int | None, browser: bool, json_output: bool) -> int:
    """Train in the browser: drop data, pick a network, train, look at the result and export it.

    The page runs the commands of ortrain in DIR and shows them. Only this machine can open the page, and only with the
    token in its address. The page reads and writes nothing outside DIR. Ctrl-C ends the command and a run that is
    training.
    """
    serving.check_folder(folder, "studio")
    server = serving.listening(Studio, folder, port, PORT)

    def announce() -> None:
        if json_output:
            app.print_json({"url": server.url, "port": server.server_port, "folder": folder})
        else:
            click.echo(f"{server.url} (Ctrl-C ends it)")

    serving.serve(server, announce, browser)
    server.work.close()
    return app.OK
