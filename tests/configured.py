"""Configuring builds of the C and C++ library without compiling them."""

from __future__ import annotations

import pathlib
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
