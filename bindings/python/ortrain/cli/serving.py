"""A server of pages that a command runs until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from ortrain._support.signals import ENDING
from ortrain.dashboard import Server

S = TypeVar("S", bound=Server)


def check_folder(folder: Path, command: str) -> None:
    """Reject a path that is not a folder.

    Raises
    ------
    NotADirectoryError
        When it is a file.
    FileNotFoundError
        When there is nothing.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{command}: expected a folder, found the file {folder}")
    if not folder.exists():
        raise FileNotFoundError(f"{command}: there is no folder {folder}")


def listening(make: Callable[[Path, int], S], folder: Path, port: int | None, usual: int) -> S:
    """Return a server on a port: the given one, else the usual one, else any free port.

    Raises
    ------
    OSError
        When the given port is in use.
    """
    try:
        return make(folder, usual if port is None else port)
    except OSError as error:
        if port is not None:
            raise OSError(f"--port: cannot listen on port {port}: {error.strerror or error}") from error
        return make(folder, 0)


def serve(server: Server, announce: Callable[[], None], browser: bool) -> None:
    """Run a server until Ctrl-C. ``announce`` prints where it is."""
    # Programs that a shell script starts in the background ignore SIGINT unless they set a handler. SIGTERM ends the server
    # like Ctrl-C.
    for number in ENDING:
        signal.signal(number, signal.default_int_handler)
    with server, contextlib.suppress(KeyboardInterrupt):
        announce()
        if browser and not webbrowser.open(server.url):
            click.echo("ortrain: found no browser", err=True)
        server.serve_forever(poll_interval=0.2)
    click.echo("stopped", err=True)
