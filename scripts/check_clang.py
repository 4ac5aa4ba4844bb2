"""Check that clang compiles the core without a warning. Releases are built with gcc, which has other warnings.

python scripts/check_clang.py COMPILER BUILD_FOLDER [PART_OF_A_PATH ...]
"""

from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import pathlib
import shlex
import subprocess
import sys

KEPT = ("-D", "-I", "-isystem", "-std=")
# Since release 17, clang warns about std::get_temporary_buffer inside std::stable_sort of libstdc++ 12. gcc reports ours.
CHECKS = ("-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations")


def command_of(compiler: str, entry: dict[str, str]) -> list[str]:
    """Return the command that checks a source. The argument is the command that compiles the source."""
    given = shlex.split(entry["command"])
    kept = []
    for at, argument in enumerate(given):
        if argument.startswith(KEPT):
            kept.append(argument)
            if argument == "-isystem":
                kept.append(given[at + 1])
    return [compiler, *kept, *CHECKS, entry["file"]]


def check(compiler: str, entry: dict[str, str]) -> str:
    """Return the warnings and errors that clang prints about a source."""
    ran = subprocess.run(
        command_of(compiler, entry), cwd=entry["directory"], capture_output=True, text=True, check=False
    )
    return ran.stderr


def main() -> int:
    """Check the sources of the core whose path contains one of the parts; without parts, all of them."""
    compiler, build, *parts = sys.argv[1:]
    entries = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    sources = [
        e for e in entries if "/core/src/" in e["file"] and (not parts or any(p in e["file"] for p in parts))
    ]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [text for text in pool.map(functools.partial(check, compiler), sources) if text]
    print(*problems, sep="\n", end="")
    print(f"clang: {len(sources)} sources, {len(problems)} with warnings")
    return 1 if problems or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
