"""A Trainer with adapters maps the weights that it does not train."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
from ortrain import Trainer, models
from ortrain.artifacts import LoRA
from ortrain.trainer.creation import make_artifacts

TOKENS = 1000  # so that the embedding is large enough to be mapped


def rows():
    ids = np.random.default_rng(3).integers(0, TOKENS, (4, 17))
    return ids[:, :-1], np.ones_like(ids[:, :-1]), ids[:, 1:]


def trained(**settings):
    return Trainer(
        models.gpt(TOKENS, 16, 32, 2, 1, seed=1),
        loss="token_cross_entropy",
        adapter=LoRA(r=2, seed=1),
        learning_rate=1e-2,
        **settings,
    )


def test_weights_beside_adapters_are_mapped_and_not_in_checkpoints(tmp_path):
    first = trained(artifact_directory=tmp_path / "artifacts")
    second = Trainer(tmp_path / "artifacts", learning_rate=1e-2)
    weights = tmp_path / "artifacts" / "weights.data"
    table = 4 * TOKENS * 32  # bytes of the embedding, which is not trained
    assert weights.stat().st_size > 2 * table
    if sys.platform == "linux":
        maps = Path("/proc/self/maps").read_text().splitlines()
        access = {line.split()[1] for line in maps if line.endswith(str(weights))}
        assert access
        assert all(re.fullmatch("r--[ps]", each) for each in access)
    losses = [each.fit(rows(), 3, batch_size=2, verbose=False)["loss"] for each in (first, second)]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    first.save(tmp_path / "trained.ckpt")
    assert (tmp_path / "trained.ckpt").stat().st_size < table


def test_the_losses_are_those_of_weights_in_the_models(tmp_path):
    mapped = trained()
    make_artifacts(
        *(models.gpt(TOKENS, 16, 32, 2, 1, seed=1), "token_cross_entropy", "adamw", tmp_path, None, None),
        adapter=LoRA(r=2, seed=1),
        external_data=False,
    )
    assert not (tmp_path / "weights.data").exists()
    inside = Trainer(tmp_path, learning_rate=1e-2)
    losses = [each.fit(rows(), 3, batch_size=2, verbose=False)["loss"] for each in (mapped, inside)]
    assert losses[0] == losses[1]


def test_a_trainer_that_is_dropped_removes_its_files():
    trainer = trained()
    folder = trainer.folder
    del trainer
    assert not folder.exists()
