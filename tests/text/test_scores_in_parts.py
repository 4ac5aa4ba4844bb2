"""A trainer that does not return the scores of a language model never holds all of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from ortrain import Trainer, models
from ortrain.artifacts import LoRA


@pytest.mark.parametrize("returned", ["0", "1"])
def test_the_loss_is_computed_from_parts_of_the_scores(tmp_path, returned):
    trainer = Trainer(
        models.gpt(4096, 8, 16, 2, 1),
        loss="token_cross_entropy",
        adapter=LoRA(r=2),
        outputs=["logits"],
        config={"ortrain.optional_outputs": returned, "ortrain.dump_graph": str(tmp_path)},
    )
    ids = np.arange(16).reshape(2, 8)
    trainer.fit((ids, np.ones_like(ids), np.where(ids % 3, ids, -100)), epochs=1, verbose=False)
    for kind in ("training", "eval"):
        last = sorted(tmp_path.rglob(f"{kind}_model_*.onnx"))[-1]
        operators = {node.op_type for node in onnx.load(last).graph.node}
        assert ("ProjectedCrossEntropy" in operators) == (returned == "0")
    trainer.export(tmp_path / "trained.onnx")
    assert [value.name for value in onnx.load(tmp_path / "trained.onnx").graph.output] == ["logits"]
