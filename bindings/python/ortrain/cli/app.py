"""Code that all subcommands share: finding a subcommand, reporting errors, printing.

Exit status: 0 for success, 1 for an error, 2 for wrong arguments, 3 if the answer is no (a model that cannot be trained,
checkpoints that differ, a failed self-test), 130 after Ctrl-C.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from ortrain._files.system import system
from ortrain._ortrain import __version__
from ortrain._start import interrupt
from ortrain._support.suggestions import did_you_mean
from ortrain.errors import OrtrainError

OK, ERROR, USAGE, NO, INTERRUPTED = 0, 1, 2, 3, 130

_COMMANDS = {
    "alias": "let programs built for onnxruntime find this library",
    "artifacts": "create training artifacts from a model",
    "compat": "show which operators of a model run and train",
    "completion": "print the completion script of a shell",
    "convert": "convert checkpoints and arrays, and models between ONNX and ORT format",
    "dashboard": "show runs in the browser while they train",
    "demo": "train on handwritten digits and show the result",
    "diff": "compare two checkpoints",
    "doctor": "describe this machine and test the library",
    "evaluate": "compute loss and metrics on data",
    "export": "write a trained model for inference",
    "generate": "generate text with a language model",
    "inspect": "describe a model, artifacts, a checkpoint or data",
    "new": "write an untrained network for data",
    "predict": "compute the outputs of a trained model",
    "profile": "show where the time of a training step goes",
    "quantize": "quantize the weights of a model to 4 or 8 bits",
    "reduce": "build a small native library for artifacts",
    "studio": "train in the browser",
    "train": "train artifacts on data",
}

# Errors whose cause is outside the program. Any other exception is a fault of ortrain and is shown with a traceback.
EXPECTED = (
    OrtrainError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ImportError,
    NotImplementedError,
    MemoryError,
)


class _Commands(click.Group):
    """Finds each subcommand in the module of its name, so that ``--help`` imports no subcommand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"ortrain.cli.{cmd_name}_command")
        found: click.Command = module.command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            hint = did_you_mean(args[0], _COMMANDS) or f"; commands are {', '.join(sorted(_COMMANDS))}"
            ctx.fail(f"there is no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`ortrain COMMAND --help` describes a command and shows examples.\n\nExit status: 0 done, 1 an error, 2 invalid "
    "arguments, 3 the answer is no (checkpoints differ, a model cannot be trained, a test failed), 130 interrupted.",
)
@click.version_option(__version__, message="ortrain %(version)s")
def group() -> None:
    """Training of ONNX models on the device that runs them."""


F = TypeVar("F", bound=Callable[..., Any])


def command(name: str, examples: str) -> Callable[[F], click.Command]:
    """Make a subcommand of a function: its docstring is the help, ``--debug`` is added.

    Parameters
    ----------
    name : str
        Its name.
    examples : str
        Command lines, shown at the end of the help.
    """
    epilog = "\b\nExamples:\n" + "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())

    def decorate(function: F) -> click.Command:
        debug = click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            callback=_set_debug,
            help="show the traceback of an error",
        )
        return click.command(
            name,
            epilog=epilog,
            short_help=_COMMANDS[name],
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )(debug(function))

    return decorate


def _set_debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.find_root().meta["ortrain.debug"] = value


class NewFile(click.Path):
    """The path of a file that a command writes. A path that ends in a slash names a folder and is rejected."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if names_a_folder(value):
            self.fail(f"expected a file name, found the folder {value}", param, ctx)
        return super().convert(value, param, ctx)


def names_a_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path ends in a slash, which a `Path` no longer shows; on Windows, either kind of slash."""
    return os.fspath(path).endswith((os.sep, os.altsep or os.sep))


as_json = click.option("--json", "json_output", is_flag=True, help="print one JSON object instead of text")


def plain(value: Any) -> Any:
    """Return a value as JSON can represent it; NaN and infinities are null."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (str, int, type(None))):
        return value
    return value.tolist() if hasattr(value, "tolist") else str(value)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(plain(value)))


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as text with aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _hint(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return ""
    if isinstance(error, FileNotFoundError) and str(error).startswith("--"):
        return "check the path"
    if isinstance(error, FileNotFoundError):
        return "check the path; `ortrain artifacts MODEL` creates artifacts, `ortrain train` checkpoints and logs"
    if isinstance(error, OSError) and error.errno:  # a full disk, a folder that is not writable
        return ""
    return "`--help` shows examples, `--debug` shows the traceback"


@contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Print warnings for users as lines of the command, without the source line that Python shows."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, UserWarning):
                click.echo(f"ortrain: {message}", err=True)
            else:
                usual(message, category, *place, **options)

        warnings.showwarning = show
        yield


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : list of str, optional
        Its arguments; those of the process by default.

    Returns
    -------
    int
        The exit status.
    """
    if arguments is None and "_ORTRAIN_COMPLETE" in os.environ:  # a shell is asking for completions
        group.main(prog_name="ortrain")
    if arguments is None:
        system.use_utf8_in_pipes()
    given = sys.argv[1:] if arguments is None else arguments
    context_meta: dict[str, Any] = {}
    try:
        interrupt.is_over()
        with _warnings_in_a_line(), group.make_context("ortrain", list(given)) as context:
            context_meta = context.meta
            result = group.invoke(context)
        return result if isinstance(result, int) else OK
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("ortrain: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return ERROR
    except EXPECTED as error:
        if context_meta.get("ortrain.debug"):
            traceback.print_exc()
        message = str(error) or type(error).__name__
        if isinstance(error, KeyError):
            message = f"there is no {message}"
        if isinstance(error, MemoryError):
            message = "there is not enough memory" + (f": {error}" if str(error) else "")
        click.echo(f"ortrain: {message}", err=True)
        hint = _hint(error)
        if hint:
            click.echo(f"hint: {hint}", err=True)
        return ERROR
