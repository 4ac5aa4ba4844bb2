"""Parameter groups that are frozen in some epochs."""

from __future__ import annotations

import numpy as np
import pytest
from ortrain import Trainer
from ortrain.onnxblock.optim import ParamGroup
from ortrain.trainer import FreezeGroups, LambdaCallback
from small import model

GROUP = ParamGroup("first", ["w1"], lr_factor=0.5)


def trainer():
    return Trainer(
        model(), "cross_entropy", learning_rate=0.05, weight_decay=0.1, param_groups=[GROUP], seed=2
    )


def rows():
    rng = np.random.default_rng(1)
    return rng.normal(size=(12, 8)).astype(np.float32), rng.integers(0, 3, 12)


def changes(made, epochs, freeze, **settings):
    """For each epoch, whether w1 and w2 changed."""
    found, before = [], {}

    def note(epoch, logs):
        before.update({name: made.state.parameters[name].data for name in ("w1", "w2")})

    def compare(epoch, logs):
        found.append(
            tuple(not np.array_equal(made.state.parameters[name].data, before[name]) for name in ("w1", "w2"))
        )

    watch = LambdaCallback(on_epoch_begin=note, on_epoch_end=compare)
    made.fit(rows(), epochs, batch_size=4, verbose=False, callbacks=[freeze, watch], **settings)
    return found


@pytest.mark.parametrize("when", [range(2), lambda epoch: epoch < 2], ids=["epochs", "a function"])
def test_a_group_is_frozen_in_its_epochs(when):
    made = trainer()
    assert changes(made, 4, FreezeGroups({"first": when})) == [(False, True)] * 2 + [(True, True)] * 2
    assert made.optimizer.param_groups["first"].learning_rate_factor == 0.5


def test_a_resumed_run_is_frozen_as_the_whole_one(tmp_path):
    def save(batch, logs):
        if whole.step == 5:  # in the second epoch
            whole.save(tmp_path / "middle.ckpt")

    whole = trainer()
    freeze = FreezeGroups({"first": [1, 2]})
    callbacks = [freeze, LambdaCallback(on_train_batch_end=save)]
    whole.fit(rows(), 4, batch_size=4, verbose=False, callbacks=callbacks)
    resumed = trainer()
    callbacks = [FreezeGroups({"first": [1, 2]}), LambdaCallback()]
    resumed.fit(rows(), 4, batch_size=4, verbose=False, callbacks=callbacks, resume=tmp_path / "middle.ckpt")
    assert resumed.history == whole.history
    for (name, mine), (_, other) in zip(resumed.state.parameters, whole.state.parameters, strict=True):
        np.testing.assert_array_equal(mine.data, other.data, err_msg=name)
    assert resumed.optimizer.param_groups["first"].learning_rate_factor == 0.5


def test_a_group_that_there_is_not_is_an_error():
    with pytest.raises(ValueError, match="expected a group with its epochs, found none"):
        FreezeGroups({})
    with pytest.raises(ValueError, match=r"no parameter group .body.; it has .*first"):
        trainer().fit(rows(), 1, verbose=False, callbacks=[FreezeGroups({"body": [0]})])
