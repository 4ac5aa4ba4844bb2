"""Schedules of a trainer: what its arguments say, and the rates of a resumed run."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest
import small
from ortrain import Trainer
from ortrain.trainer import LambdaCallback, ModelCheckpoint, Schedule

X, Y = small.rows(100)
RATE = 0.25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return small.make_artifacts(tmp_path_factory.mktemp("artifacts"))


def rates(trainer: Trainer, epochs: int, **options: Any) -> list[float]:
    """Return the rate of each optimizer step; an epoch has four."""
    found: list[float] = []
    record = LambdaCallback(on_train_batch_end=lambda batch, logs: found.append(logs["learning_rate"]))
    callbacks = [record, *options.pop("callbacks", [])]
    trainer.fit((X, Y), epochs, batch_size=25, callbacks=callbacks, verbose=False, **options)
    return found


def test_a_warmup_goes_before_any_schedule_and_each_run_begins_again(folder: pathlib.Path) -> None:
    schedule = Schedule("multi_step", milestones=[3, 5], gamma=0.5)
    trainer = Trainer(folder, learning_rate=RATE, schedule=schedule, warmup=2)
    expected = [0, RATE / 2, RATE, RATE, RATE, RATE / 2, RATE / 2, RATE / 4]
    assert rates(trainer, 2) == expected
    assert rates(trainer, 2) == expected
    assert trainer.settings["schedule_settings"] == {"milestones": [3, 5], "gamma": 0.5}


def test_a_schedule_counts_epochs(folder: pathlib.Path) -> None:
    schedule = Schedule("exponential", gamma=0.5, per_epoch=True)
    found = rates(Trainer(folder, learning_rate=RATE, schedule=schedule), 3)
    assert found == [RATE] * 4 + [RATE / 2] * 4 + [RATE / 4] * 4


def test_the_rate_falls_on_a_plateau(folder: pathlib.Path) -> None:
    schedule = Schedule("on_plateau", patience=0, gamma=0.5, threshold=1e9, absolute=True, monitor="loss")
    found = rates(Trainer(folder, learning_rate=RATE, schedule=schedule), 3)
    assert found == [RATE] * 8 + [RATE / 2] * 4  # the first value is the best one
    wrong = Schedule("on_plateau", monitor="val_los")
    with pytest.raises(ValueError, match="expected monitor among loss, learning_rate, found 'val_los'"):
        rates(Trainer(folder, schedule=wrong), 1)


@pytest.mark.parametrize("name", ["cosine", "on_plateau", "function"])
def test_a_resumed_run_has_the_same_rates(folder: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    given: Any = {
        "cosine": Schedule("cosine", min_factor=0.1),
        "on_plateau": Schedule("on_plateau", patience=0, gamma=0.5, threshold=1e9, absolute=True),
        "function": lambda step, total: math.exp(-step / total),
    }[name]

    def trainer() -> Trainer:
        made = Trainer(folder, learning_rate=RATE, schedule=given, warmup=0 if name == "function" else 2)
        rates(made, 1)  # steps that are not of the run
        return made

    saves = [ModelCheckpoint(tmp_path / f"{name}-{{epoch}}.ckpt")]
    whole = rates(trainer(), 4, callbacks=saves)
    resumed = Trainer(folder, learning_rate=RATE, schedule=given, warmup=0 if name == "function" else 2)
    assert rates(resumed, 4, callbacks=saves, resume=tmp_path / f"{name}-2.ckpt") == whole[8:]
    assert len(set(whole)) > 3


def test_a_run_without_a_schedule_ends_that_of_the_checkpoint(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    trainer = Trainer(folder, learning_rate=RATE, schedule="linear")
    rates(trainer, 1)
    trainer.save(tmp_path / "saved")
    other = Trainer(folder, checkpoint=tmp_path / "saved", learning_rate=RATE)
    assert rates(other, 1) == [RATE] * 4
    other.save(tmp_path / "again")
    assert Trainer(folder, checkpoint=tmp_path / "again").learning_rate == RATE
