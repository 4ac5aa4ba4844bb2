"""Checkpoints that have a second file are kept, named, moved and removed with that file."""

from __future__ import annotations

import numpy as np
import pytest
import small
from ortrain import Trainer
from ortrain._files.checkpoints import (
    copy_checkpoint,
    data_file_of,
    link_checkpoint,
    move_checkpoint,
    remove_checkpoint,
)
from ortrain.api import CheckpointState
from ortrain.trainer import ModelCheckpoint
from two_files import saved_in_two_files, split

__all__ = ["saved_in_two_files"]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def weights(path):
    return CheckpointState.load_checkpoint(path).parameters["w1"].data


@pytest.fixture
def artifacts(tmp_path):
    return small.make_artifacts(tmp_path / "artifacts")


@pytest.fixture
def checkpoints(artifacts, tmp_path):
    """Two checkpoints, ``first`` and ``second``, with a second file each, and ``third`` without."""
    for number, name in enumerate(("first", "second", "third")):
        trainer = Trainer(artifacts, learning_rate=1e-2, seed=number)
        trainer.fit(small.rows(), 1, verbose=False)
        (tmp_path / "saved").mkdir(exist_ok=True)
        trainer.save(tmp_path / "saved" / name)
        if name != "third":
            split(tmp_path / "saved" / name)
    return tmp_path / "saved"


@pytest.mark.usefixtures("saved_in_two_files")
def test_a_run_keeps_and_names_them_with_their_second_file(artifacts, tmp_path):
    folder = tmp_path / "runs"
    save = ModelCheckpoint(
        folder / "{epoch}.ckpt",
        monitor="loss",
        keep=2,
        best_path=folder / "best.ckpt",
        last_path=folder / "last.ckpt",
    )
    trainer = Trainer(artifacts, learning_rate=1e-2)
    trainer.fit(small.rows(), 4, callbacks=[save], verbose=False)
    kept = [path.rpartition("/")[2] for _, path in save.saved]
    expected = ["best.ckpt", "last.ckpt", *kept]
    assert names_in(folder) == sorted(expected + [f"{name}.data" for name in expected])
    np.testing.assert_array_equal(weights(folder / "last.ckpt"), trainer.state.parameters["w1"].data)
    np.testing.assert_array_equal(weights(folder / "best.ckpt"), weights(folder / f"{save.best_epoch}.ckpt"))
    again = Trainer(artifacts, learning_rate=1e-2)
    again.fit(small.rows(), 5, callbacks=[save], resume=folder / "last.ckpt", verbose=False)
    assert again.epoch == 5


@pytest.mark.parametrize("place", [link_checkpoint, copy_checkpoint])
def test_a_checkpoint_replaces_another(checkpoints, place):
    """Whether either of them, both or none have a second file."""
    expected = {name: weights(checkpoints / name) for name in ("first", "second", "third")}
    for name in ("first", "second", "second", "third", "third", "first"):
        place(checkpoints / name, checkpoints / "name")
        np.testing.assert_array_equal(weights(checkpoints / "name"), expected[name])
        files = ["first", "first.data", "second", "second.data", "third", "name"]
        assert names_in(checkpoints) == sorted(files + ["name.data"] * (name != "third"))


@pytest.mark.parametrize("failing", ["name.data", "name"])
def test_the_replaced_checkpoint_stays_loadable_until_the_end(checkpoints, failing, monkeypatch):
    """A process that ends before a file is replaced leaves the earlier checkpoint; the next call then replaces it."""
    import ortrain._files.checkpoints as module

    link = module.link_file

    def interrupted(source, path, what):
        if path.name == failing:
            raise KeyboardInterrupt
        link(source, path, what)

    link_checkpoint(checkpoints / "first", checkpoints / "name")
    with monkeypatch.context() as patched:
        patched.setattr(module, "link_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            link_checkpoint(checkpoints / "second", checkpoints / "name")
    np.testing.assert_array_equal(weights(checkpoints / "name"), weights(checkpoints / "first"))
    copy_checkpoint(checkpoints / "name", checkpoints / "copy")
    np.testing.assert_array_equal(weights(checkpoints / "copy"), weights(checkpoints / "first"))
    link_checkpoint(checkpoints / "second", checkpoints / "name")
    np.testing.assert_array_equal(weights(checkpoints / "name"), weights(checkpoints / "second"))
    assert "name.data.old" not in names_in(checkpoints)


def test_a_checkpoint_is_moved_and_removed(checkpoints):
    expected = weights(checkpoints / "first")
    (checkpoints / "aside").mkdir()
    move_checkpoint(checkpoints / "first", checkpoints / "aside" / "moved")
    assert names_in(checkpoints / "aside") == ["moved", "moved.data"]
    np.testing.assert_array_equal(weights(checkpoints / "aside" / "moved"), expected)
    remove_checkpoint(checkpoints / "aside" / "moved")
    assert names_in(checkpoints / "aside") == []
    remove_checkpoint(checkpoints / "first")  # it does not exist
    assert names_in(checkpoints) == ["aside", "second", "second.data", "third"]


def test_other_files_with_the_same_ending_stay(checkpoints):
    """A data file of another checkpoint, and files beside a checkpoint that has no second file."""
    (checkpoints / "third.data").write_bytes(b"a user's")
    remove_checkpoint(checkpoints / "third")
    (checkpoints / "first.data").write_bytes((checkpoints / "second.data").read_bytes())
    assert data_file_of(checkpoints / "first") is None
    remove_checkpoint(checkpoints / "first")
    assert names_in(checkpoints) == ["first.data", "second", "second.data", "third.data"]


@pytest.mark.parametrize(
    "content", [b"", b"ODTC", b"\0\0\0\0ODTC", b"\xff\0\0\0ODTC", b"\x08\0\0\0ODTC" + b"\xff" * 8]
)
def test_a_file_that_is_no_checkpoint_has_no_second_file(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "file.data").write_bytes(b"a user's")
    remove_checkpoint(tmp_path / "file")
    assert names_in(tmp_path) == ["file.data"]
