"""A rehearsal buffer: a uniform sample of all rows, from which later runs take some, and which checkpoints keep."""

from __future__ import annotations

import numpy as np
import pytest
from ortrain import Trainer
from ortrain.trainer import LambdaCallback, Rehearsal
from small import model


def rows(first, count=24):
    """Rows whose first number tells which row it is."""
    x = np.random.default_rng(first).normal(size=(count, 8)).astype(np.float32)
    x[:, 0] = np.arange(first, first + count) / 1000
    return x, np.arange(count) % 3


def kept(buffer):
    return [] if not len(buffer) else buffer._columns[0][:, 0].tolist()


def test_the_buffer_is_a_uniform_sample_of_all_rows():
    counts = np.zeros(40)
    for seed in range(400):
        buffer = Rehearsal(10)
        buffer.begin()
        for first in range(0, 40, 7):
            buffer.offer((np.arange(first, min(40, first + 7)),), seed)
        assert len(set(buffer._columns[0].tolist())) == len(buffer) == 10
        counts[buffer._columns[0]] += 1
    # Each row is kept with a probability of 1/4: 100 times, with a deviation of 8.7.
    assert counts.sum() == 4000
    assert counts.min() > 60
    assert counts.max() < 140
    assert np.square((counts - 100) / 8.66).mean() == pytest.approx(1, abs=0.7)


def recorded(trainer):
    """What the train steps of a trainer take."""
    batches = []
    step = type(trainer.module).__call__

    class Recording(type(trainer.module)):
        def __call__(self, *batch):
            if self.training:
                batches.append(batch)
            return step(self, *batch)

    trainer.module.__class__ = Recording
    return batches


def test_batches_of_later_runs_have_rows_of_earlier_ones():
    trainer = Trainer(model(), "cross_entropy", rehearsal=Rehearsal(10, share=0.5))
    batches = recorded(trainer)
    trainer.fit(rows(0), 2, batch_size=6, verbose=False)
    assert [len(batch[0]) for batch in batches] == [6] * 8
    assert trainer.rehearsal.seen == 24  # the second epoch has no new rows
    batches.clear()
    before = set(kept(trainer.rehearsal))
    trainer.fit(rows(100), 1, batch_size=6, verbose=False)
    assert [len(batch[0]) for batch in batches] == [9] * 4
    labels = dict(
        zip(
            np.concatenate([rows(0)[0], rows(100)[0]])[:, 0].tolist(),
            [*rows(0)[1], *rows(100)[1]],
            strict=True,
        )
    )
    for x, y in batches:
        assert (x[:6, 0] >= np.float32(0.1)).all()
        assert set(x[6:, 0].tolist()) <= before
        assert [labels[first] for first in x[:, 0].tolist()] == y.tolist()
    after = kept(trainer.rehearsal)
    assert any(first >= 0.1 for first in after)
    trainer.rehearsal.clear()
    assert len(trainer.rehearsal) == 0


@pytest.mark.parametrize("step", [3, 6], ids=["in the first epoch", "in the second epoch"])
def test_a_resumed_run_has_the_same_bits(tmp_path, step):
    def begun():
        trainer = Trainer(model(), "cross_entropy", learning_rate=0.01, rehearsal=10, seed=4)
        trainer.fit(rows(0), 1, batch_size=6, verbose=False)
        return trainer

    def save(batch, logs):
        if whole.step == step:
            whole.save(tmp_path / "middle.ckpt")

    whole = begun()
    whole.fit(rows(100), 3, batch_size=6, verbose=False, callbacks=[LambdaCallback(on_train_batch_end=save)])
    resumed = Trainer(model(), "cross_entropy", learning_rate=0.01, rehearsal=10, seed=4)
    resumed.fit(rows(100), 3, batch_size=6, verbose=False, resume=tmp_path / "middle.ckpt")
    assert resumed.history == whole.history
    assert resumed.rehearsal.state() == whole.rehearsal.state()
    for (name, mine), (_, other) in zip(resumed.state.parameters, whole.state.parameters, strict=True):
        np.testing.assert_array_equal(mine.data, other.data, err_msg=name)


def test_a_search_for_a_rate_keeps_the_buffer():
    trainer = Trainer(model(), "cross_entropy", rehearsal=10)
    trainer.fit(rows(0), 1, batch_size=6, verbose=False)
    before = trainer.rehearsal.state()
    trainer.find_learning_rate(rows(0), steps=10, batch_size=6)
    assert trainer.rehearsal.state() == before


def test_what_does_not_fit_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="expected a size of 1 row or more, found 0"):
        Trainer(model(), "cross_entropy", rehearsal=0)
    with pytest.raises(ValueError, match="expected a share above 0, found -1"):
        Rehearsal(3, share=-1)
    fixed = model()
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 6
    with pytest.raises(ValueError, match="rehearsal: expected a model that takes batches of any size"):
        Trainer(fixed, "cross_entropy", rehearsal=10)
    trainer = Trainer(model(), "cross_entropy", rehearsal=10, artifact_directory=tmp_path)
    trainer.fit(rows(0), 1, batch_size=6, verbose=False)
    trainer.save(tmp_path / "trained.ckpt")
    with pytest.raises(
        ValueError, match="expected a size of 10 rows, as the buffer in the checkpoint has, found 9"
    ):
        Trainer(tmp_path, checkpoint=tmp_path / "trained.ckpt", rehearsal=9)
