"""``ortrain reduce``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from ortrain._files.writing import write_file
from ortrain._support.counts import counted
from ortrain.cli import app, model_contents, running

PARTS = ("adapters", "artifacts", "custom_operators", "graphs", "legacy", "metrics", "sparse")
"""Parts with calls that training from artifacts does not need (`parts` in spec/library.yaml)."""

SETTINGS = "reduced.cmake"

ORIGIN = "origin.txt"
"""A file in the folder of a build, with all that CMake takes over once, when it makes the folder."""


@app.command(
    "reduce",
    """
    ortrain reduce artifacts
    ortrain reduce artifacts --with metrics --source ~/ortrain
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--with",
    "kept",
    multiple=True,
    type=click.Choice(sorted((*PARTS, *model_contents.PARTS_FOR_MODELS))),
    help="keep this part of the library; may be repeated",
)
@click.option(
    "--operator",
    "more",
    multiple=True,
    metavar="NAME",
    help="keep this operator too, such as Relu or com.microsoft.Gelu; may be repeated",
)
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    metavar="CHECKOUT",
    help="build the library from this checkout or unpacked source distribution of ortrain",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="folder for the settings and the library (default DIR/reduced)",
)
@app.as_json
def command(
    folder: Path,
    kept: tuple[str, ...],
    more: tuple[str, ...],
    source: Path | None,
    out: Path | None,
    json_output: bool,
) -> None:
    """Write the settings of a small native library that trains the artifacts in DIR, and build it.

    The library has only the operators and element types of the models in DIR, and omits parts that training from
    artifacts does not need. A call that needs such a part returns an error that names the part. The settings are a file
    for `cmake -C`. With --source, the library is built, stripped and written to FOLDER/lib, and its headers to
    FOLDER/include.
    """
    models = _models_of(running.artifacts_folder(folder))
    operators = sorted({name for model in models for name in model_contents.operators_in(model)} | set(more))
    for model in models:
        kept = (*kept, *sorted(model_contents.parts_for(model) - set(kept)))
    target = out or folder / "reduced"
    if source is not None:
        _check_source(source)
    target.mkdir(parents=True, exist_ok=True)
    settings = target / SETTINGS
    write_file(settings, "settings", _settings(operators, kept))
    library = _build(source, settings, target, quiet=json_output) if source is not None else None
    size = library.stat().st_size if library is not None else None
    if json_output:
        app.print_json(
            {"settings": settings, "operators": operators, "parts": kept, "library": library, "size": size}
        )
        return
    click.echo(
        f"wrote {settings}: {counted(len(operators), 'operator')}, parts kept: {', '.join(kept) or 'none'}"
    )
    if library is not None:
        click.echo(f"wrote {library}: {(size or 0) / 1e6:.2f} MB")
    else:
        click.echo("build the library in a checkout of ortrain, or name that with --source:")
        click.echo(
            f"  cmake -C {settings.resolve()} -S CHECKOUT -B build && cmake --build build --target ortrain"
        )


def _models_of(folder: Path) -> list[Any]:
    """Return the models in a folder, without their external data.

    Raises
    ------
    FileNotFoundError
        When the folder has no training model.
    InvalidModelError
        When a file is damaged.
    """
    try:
        from ortrain._files.models import load_model
    except ImportError as error:
        raise ImportError("reduce needs onnx: pip install 'ortrain[artifacts]'") from error
    if not (folder / "training_model.onnx").is_file():
        raise FileNotFoundError(
            f"DIR: expected a folder of training artifacts, found no training_model.onnx in {folder}"
        )
    return [load_model(path, load_external_data=False) for path in sorted(folder.glob("*.onnx"))]


def _settings(operators: list[str], kept: Iterable[str]) -> str:
    """Return the text of the file for `cmake -C`."""
    values = {
        "CMAKE_BUILD_TYPE": "Release",
        "ORTRAIN_PYTHON": "OFF",
        "ORTRAIN_OPERATORS": ";".join(operators),
        **{
            f"ORTRAIN_{part.upper()}": "ON" if part in set(kept) else "OFF"
            for part in (*PARTS, *model_contents.PARTS_FOR_MODELS)
        },
    }
    lines = [f'set({name} "{value}" CACHE STRING "" FORCE)' for name, value in values.items()]
    return "\n".join(["# Written by `ortrain reduce`, for `cmake -C`.", *lines, ""])


def _check_source(source: Path) -> None:
    """Raise unless the library can be built from a folder."""
    if not (source / "core" / "src").is_dir() or not (source / "CMakeLists.txt").is_file():
        raise FileNotFoundError(
            f"--source: expected a checkout or an unpacked source distribution of ortrain, found no core/src in {source}"
        )
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            raise FileNotFoundError(
                f"--source: building needs {tool}, which is not on the path: pip install {tool}"
            )


def _origin(source: Path) -> str:
    """Return the checkout, CMake and the variables for compilers, which a build cannot change later."""
    variables = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_TOOLCHAIN_FILE")
    lines = [f"source={source.resolve()}", f"cmake={shutil.which('cmake')}"]
    return "\n".join([*lines, *(f"{name}={os.environ.get(name, '')}" for name in variables), ""])


def _build(source: Path, settings: Path, target: Path, quiet: bool) -> Path:
    """Build the library, and install it without its symbols; returns its path.

    Raises
    ------
    OSError
        When CMake or the compiler fails; they print why.
    """
    build = target / "build"
    origin = _origin(source)
    built_from = build / ORIGIN
    if not built_from.is_file() or built_from.read_text(encoding="utf-8") != origin:
        shutil.rmtree(build, ignore_errors=True)
    steps = [
        [
            "cmake",
            "-C",
            settings,
            "-S",
            source,
            "-B",
            build,
            "-G",
            "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
        ],
        ["cmake", "--build", build, "--target", "ortrain"],
        ["cmake", "--install", build, "--prefix", target, "--strip"],
    ]
    for step in steps:
        done = subprocess.run([str(word) for word in step], stdout=sys.stderr if quiet else None, check=False)
        if done.returncode:
            raise OSError(
                f"{' '.join(map(str, step[:2]))} in {build} failed with status {done.returncode}; see its output"
            )
        write_file(built_from, "origin of the build", origin)
    found = sorted(path for path in target.glob("lib*/**/*ortrain*") if path.suffix in (".so", ".dylib"))
    if not found:
        raise OSError(f"cmake --install wrote no library below {target}")
    return found[0]
