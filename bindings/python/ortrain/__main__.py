"""The ``ortrain`` command."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ortrain import OrtrainError, __version__
from ortrain.alias import make_alias
from ortrain.profiling import profile


def at_least_one(text: str) -> int:
    """Return a count that is 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of 1 or more, found {text}")
    return number


def config_entry(text: str) -> tuple[str, str]:
    """Return the key and the value of KEY=VALUE."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, found {text}")
    return key, value


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="ortrain", description="Training of ONNX models on the device that runs them."
    )
    parser.add_argument("--version", action="version", version=f"ortrain {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "profile",
        help="show where the time of a training step goes",
        description="Train some steps of the artifacts in DIR, on random data unless --inputs is given, and "
        "print the time of each operator per step. Nothing in DIR is changed.",
    )
    command.add_argument("folder", type=Path, metavar="DIR", help="folder of the training artifacts")
    command.add_argument("--steps", type=at_least_one, default=20, help="recorded steps (default 20)")
    command.add_argument(
        "--batch",
        type=at_least_one,
        default=16,
        help="size of dimensions that the model does not fix (default 16)",
    )
    command.add_argument(
        "--inputs", type=Path, metavar="NPZ", help="arrays by input name; other inputs are random"
    )
    command.add_argument("--by-node", action="store_true", help="one row per node instead of per operator")
    command.add_argument("--limit", type=int, default=0, metavar="N", help="show N rows (default all)")
    command.add_argument("--trace", type=Path, metavar="JSON", help="write Chrome's trace event format too")
    command.add_argument(
        "--threads", type=int, default=0, help="threads of a step (default one per processor)"
    )
    command.add_argument(
        "--config",
        type=config_entry,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="configuration entry of the session; may be repeated",
    )
    command = commands.add_parser(
        "alias",
        help="let programs built for onnxruntime find this library",
        description="Fill DIR with links to the native library under the names of onnxruntime's, and to what it "
        "needs. With DIR on the library path (LD_LIBRARY_PATH, or the program's own), programs linked with "
        "libonnxruntime run on ortrain. Links in DIR are replaced, files are not.",
    )
    command.add_argument("folder", type=Path, metavar="DIR", help="folder for the links")
    options = parser.parse_args(arguments)
    if options.command == "alias":
        try:
            for link in make_alias(options.folder):
                print(link)
        except (OrtrainError, OSError) as error:
            print(f"ortrain: {error}", file=sys.stderr)
            return 1
        return 0
    return profile(
        options.folder,
        options.steps,
        options.batch,
        options.inputs,
        options.by_node,
        options.limit,
        options.trace,
        options.threads,
        dict(options.config),
    )


if __name__ == "__main__":
    sys.exit(main())
