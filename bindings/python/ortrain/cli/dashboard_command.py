"""``ortrain dashboard``."""

from __future__ import annotations

from pathlib import Path

import click

from ortrain._support.counts import counted
from ortrain.cli import app, serving
from ortrain.cli.numbers import Integer
from ortrain.dashboard import Server

PORT = 6060


@app.command(
    "dashboard",
    """
    ortrain dashboard artifacts
    ortrain dashboard experiments --port 8000 --open
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--port",
    type=Integer(0, 65535),
    help=f"port to listen on, 0 for any free port (default {PORT}, or any free port if it is in use)",
)
@click.option("--open/--no-browser", "browser", default=False, help="open the page in the browser")
@app.as_json
def command(folder: Path, port: int | None, browser: bool, json_output: bool) -> int:
    """Show the runs below DIR on a page in the browser, and follow runs in progress.

    Runs are the files that `ortrain train`, `ortrain demo` and the callback JSONLogger write, here or on another
    device. Only this machine can open the page. Ctrl-C ends the command.
    """
    serving.check_folder(folder, "dashboard")
    server = serving.listening(Server, folder, port, PORT)

    def announce() -> None:
        server.runs.refresh()
        count = len(server.runs.all())
        if json_output:
            app.print_json({"url": server.url, "port": server.server_port, "folder": folder, "runs": count})
        else:
            click.echo(f"{counted(count, 'run')} in {folder}\n{server.url} (Ctrl-C ends it)")

    serving.serve(server, announce, browser)
    return app.OK
