"""Lets programs written for onnxruntime import ortrain under its name.

``python -m ortrain.compat script.py`` runs a program unchanged, and ``import ortrain.compat`` at its start does the
same from within: where they are not installed, ``import onnxruntime`` and ``import onnxruntime.training`` find
ortrain.

An installed package is not hidden. With stock ``onnxruntime``, ``import onnxruntime`` finds it, and only
``onnxruntime.training``, which it does not have, is ortrain: the program runs its models forward with one library and
trains with the other. A warning says so. A training step takes values of either library; options and sessions of the two cannot
be mixed. With ``python -m ortrain.compat --replace script.py`` or ``ortrain.compat.install(replace=True)``, all names are those
of ortrain instead.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing.spawn
import os
import runpy
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["install", "main"]

_NAME = "onnxruntime"

#: Modules of onnxruntime that have another place in ortrain. Modules below them move too; the longest matching name decides.
_PLACES = {
    "onnxruntime": "ortrain",
    "onnxruntime.capi.onnxruntime_inference_collection": "ortrain",
    "onnxruntime.capi.onnxruntime_pybind11_state": "ortrain.capi._pybind_state",
    "onnxruntime.training.api": "ortrain.api",
    "onnxruntime.training.api.checkpoint_state": "ortrain.api",
    "onnxruntime.training.api.lr_scheduler": "ortrain.api",
    "onnxruntime.training.api.module": "ortrain.api",
    "onnxruntime.training.api.optimizer": "ortrain.api",
    "onnxruntime.training.artifacts": "ortrain.artifacts",
    "onnxruntime.training.onnxblock": "ortrain.onnxblock",
    "onnxruntime.training.onnxblock.loss.loss": "ortrain.onnxblock.loss",
    "onnxruntime.training.onnxblock.onnxblock": "ortrain.onnxblock._training",
    "onnxruntime.training.onnxblock.optim.optim": "ortrain.onnxblock.optim",
}


def _place(name: str) -> str:
    """Return the name that a module of onnxruntime has in ortrain."""
    known = name
    while known not in _PLACES:
        known = known.rpartition(".")[0]
    return _PLACES[known] + name[len(known) :]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of ortrain under the names of onnxruntime. Both names are the same module object."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != _NAME:
            return None
        try:
            found = importlib.util.find_spec(_place(fullname))
        except ModuleNotFoundError:  # the parent of the module is not a package
            return None
        if found is None:
            return None
        if fullname == f"{_NAME}.training" and sys.modules.get(_NAME) is not sys.modules["ortrain"]:
            warnings.warn(
                "onnxruntime is installed and is used; only onnxruntime.training is ortrain. "
                "'python -m ortrain.compat --replace' or ortrain.compat.install(replace=True) replaces both by ortrain",
                UserWarning,
                stacklevel=2,
            )
        is_package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, self, origin=found.origin, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns this entry of sys.modules, not the empty module that it created.
        sys.modules[module.__name__] = importlib.import_module(_place(module.__name__))


_finder = _Finder()


def install(replace: bool = False) -> None:
    """Let imports of onnxruntime find ortrain.

    Parameters
    ----------
    replace : bool, default: False
        Whether ortrain also answers for what is installed. This must come before the first import of onnxruntime.

    Raises
    ------
    RuntimeError
        With ``replace``, when the program has imported the installed onnxruntime.
    """
    if replace:
        imported = sys.modules.get(_NAME)
        if imported is not None and imported is not sys.modules["ortrain"]:
            raise RuntimeError(
                f"{_NAME} was imported from {imported.__file__} before; call install(replace=True) first"
            )
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        sys.meta_path.insert(0, _finder)
    elif _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


class _Install:
    """Calls :func:`install` where it is unpickled."""

    def __init__(self, replace: bool) -> None:
        self.replace = replace

    def __reduce__(self) -> tuple[Any, ...]:
        return install, (self.replace,)


def _install_in_children(replace: bool) -> None:
    """Make new processes of multiprocessing call :func:`install` before they import the program."""
    prepare = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        # A child unpickles all preparation data before it uses them, and ignores entries that it does not know.
        return {**prepare(name), "ortrain": _Install(replace)}

    multiprocessing.spawn.get_preparation_data = get_preparation_data


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a program that imports onnxruntime."""
    parser = argparse.ArgumentParser(
        prog="python -m ortrain.compat",
        description="Run a Python program written for onnxruntime with ortrain instead.",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="hide an installed onnxruntime; without this option only onnxruntime.training is ortrain",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module instead of a file")
    parser.add_argument("program", help="the file, or with -m the name of the module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed to the program")
    given = parser.parse_args(arguments)
    if not given.module and not os.path.exists(given.program):
        parser.error(f"there is no file {given.program}")
    install(replace=given.replace)
    _install_in_children(given.replace)
    sys.argv = [given.program, *given.arguments]
    if given.module:
        runpy.run_module(given.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(given.program))
        runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    # Under its own name, so that the finder exists once if the program imports this module too.
    importlib.import_module("ortrain.compat").main()
else:
    install()
