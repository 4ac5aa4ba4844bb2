"""Files that are written: names, links, full disks, and what killed processes leave."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from ortrain import InvalidArgumentError, OrtrainError
from ortrain.api import CheckpointState
from recorded import Fixture
from system import fcntl, needs_links, needs_size_limits, resource
from training import Training

CASE = Fixture("mlp_adamw")
Save = Callable[[pathlib.Path], None]


@pytest.fixture(scope="module")
def training() -> Training:
    training = Training(CASE.folder)
    training.step(*CASE.batches[0])
    training.module.eval()
    return training


@pytest.fixture(params=["checkpoint", "model"])
def save(request: pytest.FixtureRequest, training: Training) -> Save:
    """Write a checkpoint or a model."""
    if request.param == "checkpoint":
        return lambda path: CheckpointState.save_checkpoint(training.state, path)
    names = [training.module.output_names()[0]]
    return lambda path: training.module.export_model_for_inferencing(str(path), names)


def test_names_may_have_255_bytes(save: Save, tmp_path: pathlib.Path) -> None:
    for name in ["n" * length for length in range(240, 256)] + ["ü" * 127, "n" + "€" * 84]:
        save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 0
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()
    # Windows reports a path that does not exist.
    error = "File name too long" if os.name != "nt" else "cannot put in place .*; no file is left"
    with pytest.raises(OrtrainError, match=error):
        save(tmp_path / ("n" * 256))
    assert not os.listdir(tmp_path)


@needs_links
def test_a_link_that_leads_nowhere_stays_and_its_target_is_created(
    save: Save, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "second").symlink_to(pathlib.Path("target") / "file")
    (tmp_path / "first").symlink_to(tmp_path / "second")
    for _ in range(2):
        save(tmp_path / "first")
        assert (tmp_path / "first").is_symlink()
        assert (tmp_path / "second").is_symlink()
        assert (tmp_path / "target" / "file").stat().st_size > 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "first", "second", "target"]


@needs_links
def test_a_link_in_a_circle_is_an_error(save: Save, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OrtrainError, match="cannot write"):
        save(tmp_path / "a")


@pytest.mark.parametrize(("path", "found"), [("", "an empty path"), ("folder/", "a folder")])
def test_a_path_without_a_name_is_an_error(training: Training, path: str, found: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"expected a file name, found {found}"):
        CheckpointState.save_checkpoint(training.state, path)


def test_temporary_files_of_processes_that_ended_are_removed(save: Save, tmp_path: pathlib.Path) -> None:
    name = "n" * 150
    abandoned = [tmp_path / f"{name}.tmp-{process}-{count}" for process in (1, 99999999) for count in (0, 12)]
    kept = [
        tmp_path / f"{name}.tmp-1-5",
        tmp_path / f"{name}.tmp-mine",
        tmp_path / "n.tmp-1-0",
        tmp_path / "other",
    ]
    for path in abandoned + kept:
        path.write_text("half")
    with kept[0].open() as used:
        fcntl.flock(used, fcntl.LOCK_EX)  # as a process that is still writing holds it
        save(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / name, *kept])
    save(tmp_path / name)
    assert not kept[0].exists()


@needs_size_limits
def test_what_a_killed_process_leaves_is_removed_by_the_next_save(
    training: Training, tmp_path: pathlib.Path
) -> None:
    """The process is killed by the limit on the size of files, in the middle of writing."""
    program = f"""
import resource, signal
from ortrain.api import CheckpointState
state = CheckpointState.load_checkpoint({str(CASE.path("checkpoint"))!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
CheckpointState.save_checkpoint(state, {str(tmp_path / "checkpoint")!r})
"""
    for _ in range(2):
        ran = subprocess.run([sys.executable, "-c", program], check=False)
        assert ran.returncode == -signal.SIGXFSZ
        [left] = tmp_path.iterdir()
        assert left.name.startswith("checkpoint.tmp-")
    CheckpointState.save_checkpoint(training.state, tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(save: Save, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    save(path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for size in (0, 1, len(before) // 2, len(before) - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            with pytest.raises(OrtrainError, match=r"cannot write .*File too large.*unchanged"):
                save(path)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert os.listdir(tmp_path) == ["file"]
            assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    save(path)
    assert path.read_bytes() == before
