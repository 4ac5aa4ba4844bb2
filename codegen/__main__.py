"""``python -m codegen``: renders the spec; with ``--check``, it fails if a committed file differs from the rendered text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from codegen.render import render, render_pages
from codegen.spec.check import load
from codegen.spec.source import SpecError
from codegen.write import difference, write, write_pages

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m codegen", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; print a diff and fail where files differ"
    )
    parser.add_argument("--spec", type=Path, default=ROOT / "spec", help="folder of the spec")
    parser.add_argument(
        "--out", type=Path, default=ROOT, help="root that the rendered files are written under"
    )
    parser.add_argument(
        "--pages",
        type=Path,
        metavar="FOLDER",
        help="only render the page of each language's API, into FOLDER (the site is built with these)",
    )
    options = parser.parse_args(arguments)
    try:
        spec = load(options.spec)
        rendered = render_pages(spec) if options.pages else render(spec)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2
    if options.pages:
        write_pages(rendered, options.pages)
        return 0
    if options.check:
        diff = difference(rendered, options.out)
        if diff:
            print(diff, end="")
            print("generated files differ from the spec: run `python -m codegen`", file=sys.stderr)
            return 1
        return 0
    for name in write(rendered, options.out):
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
