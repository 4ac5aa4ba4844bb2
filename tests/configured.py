"""Configuring builds of the C and C++ library without compiling them."""

from __future__ import annotations

import itertools
import json
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def configure(folder: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run CMake on the project, without Python's extension."""
    command = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DORTRAIN_PYTHON=OFF"]
    command.append(f"-DPython_EXECUTABLE={sys.executable}")
    return subprocess.run([*command, *options], capture_output=True, text=True)


def link_command(folder: pathlib.Path) -> str:
    """Return the command that links libortrain.so."""
    commands = subprocess.check_output(["ninja", "-C", folder, "-t", "commands", "ortrain"], text=True)
    return next(line for line in commands.splitlines() if " -shared " in line)


def core_commands(folder: pathlib.Path) -> dict[str, str]:
    """Return the commands that compile the core, by the paths of their sources."""
    entries = json.loads((folder / "compile_commands.json").read_text())
    return {
        entry["file"]: entry["command"]
        for entry in entries
        if "/core.dir/" in entry["command"] and entry["file"].endswith(".cpp")
    }


def operators_header(command: str) -> str:
    """Return the text of the header with the operators, as a compiler with this command finds it."""
    words = shlex.split(command)
    first = [word[2:] for word in words if word.startswith("-I")]
    last = [folder for word, folder in itertools.pairwise(words) if word == "-isystem"]
    headers = (pathlib.Path(folder, "built_operators.h") for folder in [*first, *last])
    return next(path.read_text() for path in headers if path.is_file())
