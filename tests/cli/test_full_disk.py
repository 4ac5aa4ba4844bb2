"""A command that cannot write its file says why; the file that was there stays, and nothing else is left."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from ortrain import FileError, OrtErrorCode, OrtrainError
from ortrain._files.writing import link_file, replaced_file, write_file, write_files
from ortrain.errors import error_from_status
from recorded import Fixture
from system import limits_files, needs_links, needs_named_pipes, needs_umask

CHECKPOINT = Fixture("resnet_bn").folder / "checkpoint_after"
MODEL = Fixture("mlp_adamw").folder / "model.onnx"
ARTIFACTS = Fixture("mlp_adamw").folder
LIMIT = 1000  # bytes of a file, less than any of the results has


def limited(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that can write no file of more bytes, as on a full disk."""
    return subprocess.run(
        [sys.executable, "-m", "ortrain", *map(str, arguments)],
        preexec_fn=limits_files(LIMIT),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def assert_refused(ran: subprocess.CompletedProcess[str], path) -> None:
    lines = ran.stderr.splitlines()
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    (why,) = [line for line in lines if "File too large" in line]
    assert str(path) in why, ran.stderr


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (CHECKPOINT, "weights.npz"),
        (CHECKPOINT, "weights.safetensors"),
        (MODEL, "model.ort"),
        (MODEL, "model.onnx"),
    ],
)
def test_a_conversion_that_does_not_fit_changes_nothing(source, name, tmp_path):
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors")
    path = tmp_path / name
    path.write_bytes(b"old")
    path.chmod(0o640)
    ran = limited("convert", source, path)
    assert_refused(ran, path)
    assert "--help" not in ran.stderr  # examples do not help here
    assert path.read_bytes() == b"old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == [name]


def test_a_folder_of_tensors_is_replaced_as_a_whole(tmp_path, run):
    """Files that would have fit keep their old content as well."""
    pytest.importorskip("flatbuffers")
    run("convert", CHECKPOINT, tmp_path / "old", "--folder")
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    assert min(map(len, before.values())) < LIMIT < max(map(len, before.values()))
    other = Fixture("resnet_bn").folder / "checkpoint"
    assert_refused(limited("convert", other, tmp_path / "old", "--folder"), tmp_path / "old")
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before


def test_an_export_with_merged_adapters_names_the_file(run, tmp_path):
    lora = ("--loss", "cross_entropy", "--adapter", "lora", "--out", tmp_path / "lora")
    run("artifacts", Fixture("encoder").path("model.onnx"), *lora)
    path = tmp_path / "merged.onnx"
    path.write_bytes(b"old")
    before = sorted(os.listdir(tmp_path))
    assert_refused(limited("export", tmp_path / "lora", path, "--adapters", "merged"), path)
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == before
    missing = tmp_path / "missing" / "merged.onnx"
    said = run("export", tmp_path / "lora", missing, "--adapters", "merged", status=1).err
    assert f"cannot write the model '{missing}': there is no folder '{missing.parent}'" in said


def test_weights_that_do_not_fit_beside_a_model_name_the_model(tmp_path):
    """The sums of adapters go to a temporary file in the folder of the model."""
    program = """
import numpy as np
from pathlib import Path
from ortrain._files.weights import Spill
from ortrain._files.writing import folder_beside
with folder_beside("merged.onnx", "model") as folder:
    Spill(folder / "weights").moved(np.zeros(100_000, np.float32))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path,
        preexec_fn=limits_files(LIMIT), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "FileError: cannot write the model 'merged.onnx': cannot write the weights" in ran.stderr
    assert ran.stderr.rstrip().endswith("File too large")
    assert not os.listdir(tmp_path)


def test_the_core_says_whether_there_was_a_file(tmp_path):
    path = tmp_path / "exported.onnx"
    ran = limited("export", ARTIFACTS, path, "--output", "output")
    assert_refused(ran, path)
    assert "File too large; no file is left" in ran.stderr
    assert os.listdir(tmp_path) == []
    path.write_bytes(b"old")
    ran = limited("export", ARTIFACTS, path, "--output", "output")
    assert "File too large; the existing file is unchanged" in ran.stderr
    assert "--help" not in ran.stderr
    assert path.read_bytes() == b"old"


def test_the_errors_of_files_of_the_core_have_the_number_of_the_system():
    """As those of Python do; the wording of the core's messages is that of core/src/runtime/file.cpp."""
    path = "SaveCheckpoint: cannot {} the checkpoint 'a/it's b': {}"
    for step, number in (("write", errno.ENOSPC), ("put in place", errno.EACCES), ("sync", errno.EIO)):
        message = path.format(step, f"{os.strerror(number)}; no file is left")
        error = error_from_status(OrtErrorCode.ORT_FAIL, message)
        assert isinstance(error, FileError)
        assert (error.errno, str(error)) == (number, message)
    for message in ("a step failed: No space left on device", path.format("read", "it is not a checkpoint")):
        assert type(error_from_status(OrtErrorCode.ORT_FAIL, message)) is OrtrainError


def test_a_run_whose_checkpoints_do_not_fit_has_no_hint_of_examples(artifacts, train_npz):
    """Its checkpoints, which the core writes, do not fit."""
    ran = limited("train", artifacts, "--data", train_npz, "--epochs", 3)
    assert ran.returncode == 1
    assert "File too large" in ran.stderr
    assert "--help" not in ran.stderr


def test_artifacts_that_do_not_fit(tmp_path):
    assert_refused(
        limited("artifacts", MODEL, "--loss", "mse", "--out", tmp_path / "made"), tmp_path / "made"
    )
    assert os.listdir(tmp_path / "made") == []


@pytest.mark.parametrize("ending", ["npy", "npz", "csv"])
def test_predictions_that_do_not_fit(ending, artifacts, train_npz, tmp_path, run):
    out = tmp_path / f"out.{ending}"
    run("predict", artifacts, "--data", train_npz, "--out", out)
    before = out.read_bytes()
    listed = sorted(os.listdir(tmp_path))
    assert len(before) > LIMIT
    assert_refused(limited("predict", artifacts, "--data", train_npz, "--out", out), out)
    assert out.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == listed


def test_a_trace_that_does_not_fit(artifacts, tmp_path):
    trace = tmp_path / "trace.json"
    assert_refused(limited("profile", artifacts, "--json", "--trace", trace), trace)
    assert not trace.exists()


@needs_umask
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_has_the_mode_that_the_umask_allows(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_file(tmp_path / "new", "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~umask


@needs_links
def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("old")
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "dangling").symlink_to("folder/new")
    write_file(tmp_path / "link", "file", "new")
    write_file(tmp_path / "dangling", "file", "created")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder/file").read_text() == "new"
    assert (tmp_path / "folder/new").read_text() == "created"
    assert sorted(os.listdir(tmp_path / "folder")) == ["file", "new"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_at_the_last_moment_leaves_the_old_file(step, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(
        FileError, match=r"cannot write the log '.*file': No space left on device; .* unchanged"
    ) as error:
        write_file(tmp_path / "file", "log", "new")
    assert error.value.errno == 28
    with pytest.raises(FileError, match="no file is left"):
        write_file(tmp_path / "other", "log", "new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_an_array_that_does_not_fit_says_why(tmp_path):
    """NumPy itself says how many elements were written, and not why."""
    code = (
        "import sys, numpy, ortrain._files.writing as w\n"
        "with w.replaced_file(sys.argv[1], 'array') as file: numpy.save(file, numpy.zeros(10_000))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.npy")],
        preexec_fn=limits_files(LIMIT),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "a.npy': File too large; no file is left" in ran.stderr
    assert os.listdir(tmp_path) == []


@needs_named_pipes
def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, found in (
        (tmp_path / "pipe", "a special file"),
        (tmp_path, "a folder"),
        ("/dev/null", "a special file"),
    ):
        with pytest.raises(FileError, match=f"expected a file name, found {found}"):
            write_file(path, "file", b"")
    with pytest.raises(FileError, match="loop"):
        write_file(tmp_path / "loop", "file", b"")
    with pytest.raises(FileError, match=r"there is no folder '.*missing'$") as error:
        write_file(tmp_path / "missing/file", "file", b"")
    assert error.value.errno == errno.ENOENT
    with pytest.raises(FileError, match=r"'/dev/null' is not a folder$"):
        write_file("/dev/null/file", "file", b"")
    with pytest.raises(FileError, match=r"n/file': File name too long$"):
        write_file(tmp_path / ("n" * 256) / "file", "file", b"")


def test_what_a_killed_process_has_left_is_removed(tmp_path):
    """By the next one that writes the same file; a file that is being written stays, and so do names that are alike."""
    (tmp_path / "file.tmp-123-0").write_text("half")
    (tmp_path / "file.tmp-1-0.txt").write_text("a user's")
    with replaced_file(tmp_path / "file", "file") as slow:
        slow.write(b"slow")
        write_file(tmp_path / "file", "file", "fast")
        assert len(os.listdir(tmp_path)) == 3
    assert (tmp_path / "file").read_text() == "slow"
    assert sorted(os.listdir(tmp_path)) == ["file", "file.tmp-1-0.txt"]
    (tmp_path / "second.tmp-123-0").write_text("half")
    link_file(tmp_path / "file", tmp_path / "second", "file")
    assert sorted(os.listdir(tmp_path)) == ["file", "file.tmp-1-0.txt", "second"]


def test_names_of_any_length_and_characters(tmp_path):
    names = ["n" * 255, "ä" * 127]
    if os.name != "nt":  # names are bytes
        names.append(os.fsdecode(b"\xff" * 255))
    for name in names:
        write_file(tmp_path / name, "file", name.encode(errors="replace"))
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_an_error_of_the_caller_changes_nothing(tmp_path):
    write_file(tmp_path / "file", "file", "old")
    with pytest.raises(ZeroDivisionError), replaced_file(tmp_path / "file", "file") as file:
        file.write(b"new")
        np.float64(1 / 0)
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_several_files_are_replaced_together(tmp_path):
    (tmp_path / "second").mkdir()
    with pytest.raises(FileError):
        write_files({tmp_path / "first": b"1", tmp_path / "second": b"2"}, "file")
    assert os.listdir(tmp_path) == ["second"]
