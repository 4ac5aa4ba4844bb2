"""examples/personalize does what its README says, in every language."""

from __future__ import annotations

import functools
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from languages import COMPILERS, ROOT, Missing, Program, skip_or_fail
from ortrain.api import CheckpointState

FOLDER = ROOT / "examples/personalize"
SOURCES = {
    "python": "personalize.py",
    "c": "personalize.c",
    "cpp": "personalize.cpp",
    "csharp": "Personalize.cs",
    "objc": "personalize.m",
    "swift": "personalize.swift",
}
ARGUMENTS = ["artifacts", "samples", "out", "--epochs", "3", "--batch", "8", "--learning-rate", "0.003"]
SAMPLES = 360


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@functools.cache
def build(language: str, folder: Path) -> Program:
    source = FOLDER / SOURCES[language]
    if not source.exists():
        raise Missing(f"there is no {source.name}")
    if language == "python":
        return Program([sys.executable, str(source)])
    return COMPILERS[language][1]([source], folder / f"personalize_{language}")


@pytest.fixture(params=SOURCES)
def program(request, builds) -> Program:
    """The program in each language in turn."""
    try:
        return build(request.param, builds)
    except Missing as why:
        skip_or_fail(request.param, why)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What prepare.py makes, from fewer digits."""
    folder = tmp_path_factory.mktemp("prepared")
    command = [sys.executable, str(FOLDER / "prepare.py"), "--out", str(folder), "--samples", str(SAMPLES)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def workplace(prepared, tmp_path):
    """A folder with artifacts/ and samples/."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="module")
def reference(prepared, builds, tmp_path_factory) -> tuple[str, dict[str, bytes]]:
    """What the Python program prints and writes."""
    folder = tmp_path_factory.mktemp("reference")
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    ran = build("python", builds).run(ARGUMENTS, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, written(folder)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}


def test_every_language_prints_and_writes_the_same(program, workplace, reference):
    ran = program.run(ARGUMENTS, cwd=workplace)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == reference[0]
    assert written(workplace) == reference[1]


def test_the_exported_model_reads_the_held_out_digits(prepared, reference, tmp_path):
    stdout, files = reference
    lines = stdout.splitlines()
    assert lines[0] == f"{SAMPLES} samples of 10 classes: 288 for training, 72 held out"
    assert lines[-2:] == ["saved out/checkpoint", "exported out/model.onnx with output logits"]
    losses = [float(re.search(r": loss ([\d.]+), held-out loss [\d.]+, ", line)[1]) for line in lines[1:-2]]
    assert len(losses) == 3
    assert losses[-1] < 0.5 * losses[0]

    # Read independently of the program: sorted, every fifth is held out.
    paths = sorted(
        (prepared / "samples").glob("*/*.pgm"), key=lambda path: (int(path.parent.name), path.name)
    )
    held_out = paths[4::5]
    pixels = [np.frombuffer(path.read_bytes()[-64:], np.uint8).reshape(1, 8, 8) / 16 for path in held_out]
    (tmp_path / "model.onnx").write_bytes(files["model.onnx"])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (scores,) = session.run(["logits"], {"images": np.stack(pixels).astype(np.float32)})
    right = sum(
        int(best) == int(path.parent.name) for best, path in zip(scores.argmax(1), held_out, strict=True)
    )
    assert right >= 0.8 * len(held_out)
    tenths = (1000 * right + len(held_out) // 2) // len(held_out)
    assert lines[-3].endswith(f", accuracy {tenths // 10}.{tenths % 10}%")


def test_a_resumed_run_ends_as_the_uninterrupted_one(program, workplace, reference):
    first = program.run([*ARGUMENTS, "--epochs", "1"], cwd=workplace)
    assert first.returncode == 0, first.stderr
    (workplace / "out/checkpoint").rename(workplace / "halfway")
    resumed = program.run([*ARGUMENTS, "--resume", "halfway"], cwd=workplace)
    assert resumed.returncode == 0, resumed.stderr
    assert written(workplace) == reference[1]
    assert resumed.stdout.splitlines()[1:] == reference[0].splitlines()[2:]

    properties = dict(CheckpointState.load_checkpoint(workplace / "out/checkpoint").properties)
    assert properties["epochs"] == 3
    assert f"loss {properties['loss']:.4f}, held-out" in reference[0].splitlines()[3]


def test_images_with_comments_and_other_scales_are_read(program, workplace, reference):
    for path in (workplace / "samples").glob("*/*.pgm"):
        header, pixels = path.read_bytes()[:-64], path.read_bytes()[-64:]
        assert header == b"P5\n8 8\n16\n"
        # 16 becomes 240: the quotients are the same floats.
        scaled = bytes(15 * pixel for pixel in pixels)
        path.write_bytes(b"P5\n# a comment with 1 2 3\n#\n  8\t# width\n8\r\n240 " + scaled)
    (workplace / "samples/.hidden").write_text("passed over")
    (workplace / "samples/3/.hidden").write_text("passed over")
    ran = program.run(ARGUMENTS, cwd=workplace)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == reference[0]
    assert written(workplace) == reference[1]


def test_a_model_without_scores_is_exported_by_name(program, workplace):
    shutil.rmtree(workplace / "artifacts")
    shutil.copytree(ROOT / "tests/data/fixtures/mlp_adamw", workplace / "artifacts")
    ran = program.run([*ARGUMENTS, "--output", "output", "--seed", "2147483647"], cwd=workplace)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[-1] == "exported out/model.onnx with output output"
    assert all(re.fullmatch(r"epoch \d/3: loss [\d.]+, held-out loss [\d.]+", line) for line in lines[1:4])
    session = onnxruntime.InferenceSession(workplace / "out/model.onnx")
    assert [output.name for output in session.get_outputs()] == ["output"]


def leave_out(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return change


def put_fixture(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shutil.rmtree(folder / "artifacts")
        shutil.copytree(ROOT / "tests/data/fixtures" / name, folder / "artifacts")

    return change


def nothing(folder: Path) -> None:
    pass


def keep_samples(count: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in sorted((folder / "samples").glob("*/*.pgm"))[count:]:
            path.unlink()

    return change


PGM = b"P5\n8 8\n16\n"
NOT_PGM = "expected an 8-bit binary PGM image (P5)"
REFUSED: dict[str, tuple[Callable[[Path], None], Sequence[str], str]] = {
    "no samples": (nothing, ["artifacts", "nowhere", "out"], "nowhere: No such file or directory"),
    "no artifacts": (
        nothing,
        ["nowhere", "samples", "out"],
        "LoadCheckpoint: cannot open the checkpoint 'nowhere/checkpoint': No such file or directory",
    ),
    "no optimizer model": (
        leave_out("artifacts/optimizer_model.onnx"),
        ARGUMENTS,
        "* cannot open the model 'artifacts/optimizer_model.onnx'*",
    ),
    "an input of integers": (
        put_fixture("encoder"),
        ARGUMENTS,
        "artifacts/training_model.onnx: expected a first input of floats with a variable batch and fixed dimensions, found *",
    ),
    "nothing to export": (
        put_fixture("mlp_adamw"),
        ARGUMENTS,
        "artifacts/eval_model.onnx: it has no output besides the loss; name a value to export with --output",
    ),
    "an unknown output": (
        nothing,
        [*ARGUMENTS, "--output", "nix"],
        "*: the eval model has no value named 'nix'",
    ),
    "a folder of another name": (
        write("samples/seven/a.pgm", PGM + bytes(64)),
        ARGUMENTS,
        "samples/seven: expected a folder named by the number of its class",
    ),
    "a file among the classes": (
        write("samples/7.pgm", PGM + bytes(64)),
        ARGUMENTS,
        "samples/7.pgm: expected a folder named by the number of its class",
    ),
    "a text": (write("samples/3/a.txt", b"P6 8 8"), ARGUMENTS, f"samples/3/a.txt: {NOT_PGM}"),
    "an empty file": (write("samples/3/a.pgm", b""), ARGUMENTS, f"samples/3/a.pgm: {NOT_PGM}"),
    "16-bit pixels": (
        write("samples/3/a.pgm", b"P5 8 8 300\n" + bytes(128)),
        ARGUMENTS,
        f"samples/3/a.pgm: {NOT_PGM}",
    ),
    "a header that ends": (write("samples/3/a.pgm", b"P5 8 # 8"), ARGUMENTS, f"samples/3/a.pgm: {NOT_PGM}"),
    "a number with a sign": (
        write("samples/3/a.pgm", b"P5 8 -8 16\n"),
        ARGUMENTS,
        f"samples/3/a.pgm: {NOT_PGM}",
    ),
    "another size": (
        write("samples/3/a.pgm", b"P5\n10 8\n255\n" + bytes(80)),
        ARGUMENTS,
        "samples/3/a.pgm: expected 64 pixels, found 10 x 8",
    ),
    "too few bytes": (
        write("samples/3/a.pgm", PGM + bytes(60)),
        ARGUMENTS,
        "samples/3/a.pgm: expected 64 bytes of pixels, found 60",
    ),
    "too many bytes": (
        write("samples/3/a.pgm", PGM + bytes(65)),
        ARGUMENTS,
        "samples/3/a.pgm: expected 64 bytes of pixels, found 65",
    ),
    "a label that is not a class": (write("samples/10/a.pgm", PGM + bytes(64)), ARGUMENTS, "*: label 10 *"),
    "four samples": (
        keep_samples(4),
        [*ARGUMENTS, "--batch", "1"],
        "samples: expected at least 5 samples and 1 for training, found 4 and 4",
    ),
    "less than a batch": (
        keep_samples(12),
        [*ARGUMENTS, "--batch", "16"],
        "samples: expected at least 5 samples and 16 for training, found 12 and 10",
    ),
    "a foreign checkpoint": (
        nothing,
        [*ARGUMENTS, "--resume", "artifacts/checkpoint"],
        "artifacts/checkpoint: expected a checkpoint that this program saved, with the property epochs",
    ),
    "no place": (nothing, ["artifacts", "samples", "no/place"], "no/place: No such file or directory"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said(case, program, workplace):
    change, arguments, message = REFUSED[case]
    change(workplace)
    ran = program.run(arguments, cwd=workplace)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert ran.stderr.count("\n") == 1
    said = re.sub(
        r"^error: \[ErrorCode:\w+\] ", "error: ", ran.stderr
    )  # the beginning of an exception's message in C#
    assert fnmatchcase(said, f"error: {message}\n"), ran.stderr


def test_a_finished_run_is_not_resumed(program, workplace):
    assert program.run([*ARGUMENTS, "--epochs", "2"], cwd=workplace).returncode == 0
    ran = program.run([*ARGUMENTS, "--epochs", "2", "--resume", "out/checkpoint"], cwd=workplace)
    assert ran.returncode == 1
    expected = "error: out/checkpoint: it has 2 epochs already; expected a larger --epochs, found 2\n"
    assert ran.stderr == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "ARTIFACTS"),
        (["artifacts", "samples"], "OUT"),
        (["artifacts", "samples", "out", "more"], "more"),
        ([*ARGUMENTS, "--epochs", "0"], "--epochs"),
        ([*ARGUMENTS, "--epochs", "many"], "--epochs"),
        ([*ARGUMENTS, "--epochs", "-1"], "--epochs"),
        ([*ARGUMENTS, "--epochs"], "--epochs"),
        ([*ARGUMENTS, "--batch", "1.5"], "--batch"),
        ([*ARGUMENTS, "--batch", "99999999999999999999"], "--batch"),
        ([*ARGUMENTS, "--learning-rate", "0"], "--learning-rate"),
        ([*ARGUMENTS, "--learning-rate", "nan"], "--learning-rate"),
        ([*ARGUMENTS, "--learning-rate", "1e-3x"], "--learning-rate"),
        ([*ARGUMENTS, "--seed", "2147483648"], "--seed"),
        ([*ARGUMENTS, "--dance", "1"], "--dance"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, said, program, workplace):
    ran = program.run(arguments, cwd=workplace)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert ran.stdout == ""
    assert not (workplace / "out").exists()


def test_help_names_every_option(program):
    ran = program.run(["--help"])
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage: personalize ")
    for option in ("--epochs", "--batch", "--learning-rate", "--seed", "--output", "--resume"):
        assert option in ran.stdout


def test_a_terminal_shows_progress_and_ends_with_the_same_lines(program, workplace, reference):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*program.command, *ARGUMENTS],
        cwd=workplace,
        env={**os.environ, **program.environment, "TERM": "xterm"},
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # the message of Linux when the other end is closed
        pass
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()

    text = shown.decode().replace("\r\n", "\n")
    lines = [line.split("\r")[-1].replace("\x1b[K", "") for line in text.removesuffix("\n").split("\n")]
    assert lines == reference[0].splitlines()
    progress = [part for line in text.split("\n") for part in line.split("\r") if "samples/s" in part]
    assert len(progress) == 3 * 36, "one a step"
    pattern = r"epoch [123]/3  \[#*\.*\]  \d+/36  loss \d+\.\d{4}  \d+ samples/s"
    assert all(re.fullmatch(pattern, part) for part in progress)
    assert progress[17].startswith("epoch 1/3  [##########..........]  18/36  ")
