"""A run that is killed and resumed equals the uninterrupted one to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import small
from ortrain import Trainer
from ortrain.trainer import ModelCheckpoint
from system import KILLED

HERE = Path(__file__).parent


def run(folder: Path, kind: str, kill_at: int = 0, resume: object = "") -> int:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, HERE / "run.py", folder, kind, str(kill_at), str(resume)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode in (0, KILLED), ran.stderr
    return ran.returncode


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["arrays", "stream"])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path, kind):
    small.make_artifacts(tmp_path / "artifacts")
    assert run(tmp_path / "whole", kind) == 0
    # An epoch has 5 optimizer steps: the checkpoint of step 12 lies within the third epoch.
    assert run(tmp_path / "killed", kind, kill_at=14) == KILLED
    saved = sorted(path.name for path in (tmp_path / "killed").glob("*.ckpt"))
    assert saved == ["12.ckpt", "8.ckpt"]
    assert not (tmp_path / "killed/result.npz").exists()
    assert run(tmp_path / "killed", kind, resume=tmp_path / "killed/12.ckpt") == 0
    with np.load(tmp_path / "whole/result.npz") as whole, np.load(tmp_path / "killed/result.npz") as resumed:
        assert whole.files == resumed.files
        for name in whole.files:
            assert whole[name].tobytes() == resumed[name].tobytes(), name
        assert len(whole["rates"]) == 20
    lines = [json.loads(line) for line in (tmp_path / "killed/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, 21))
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [0, 1, 2, 3]
    assert [line["event"] for line in lines].count("begin") == 2


@pytest.fixture
def checkpoint(tmp_path):
    small.make_artifacts(tmp_path)
    trainer = Trainer(tmp_path, seed=1)
    trainer.fit(small.rows(), 1, callbacks=[ModelCheckpoint(tmp_path / "one.ckpt")], verbose=False)
    return tmp_path / "one.ckpt"


@pytest.mark.parametrize(
    ("seed", "options", "message"),
    [
        (1, {"batch_size": 8}, "expected batch_size 32, as when the checkpoint was saved, found 8"),
        (1, {"shuffle": False}, "expected shuffle True"),
        (2, {}, "expected seed 1"),
    ],
)
def test_another_run_cannot_be_resumed(checkpoint, seed, options, message):
    trainer = Trainer(checkpoint.parent, seed=seed)
    with pytest.raises(ValueError, match=message):
        trainer.fit(small.rows(), 2, resume=checkpoint, verbose=False, **options)


def test_a_checkpoint_of_no_run_cannot_be_resumed(checkpoint):
    trainer = Trainer(checkpoint.parent)
    with pytest.raises(ValueError, match=r"that Trainer\.save or ModelCheckpoint wrote"):
        trainer.fit(small.rows(), 2, resume=checkpoint.parent / "checkpoint", verbose=False)


def test_gradients_that_wait_cannot_be_saved(checkpoint, tmp_path):
    from ortrain.trainer import LambdaCallback

    trainer = Trainer(checkpoint.parent, accumulate=3)
    save = LambdaCallback(on_train_batch_end=lambda batch, logs: trainer.save(tmp_path / "x"))
    with pytest.raises(ValueError, match="found those of 1 batch"):
        trainer.fit(small.rows(), 1, callbacks=[save], verbose=False)


def test_a_trainer_that_has_not_run_can_be_saved(checkpoint, tmp_path):
    Trainer(checkpoint.parent).save(tmp_path / "new/first.ckpt")
    assert (tmp_path / "new/first.ckpt").exists()
