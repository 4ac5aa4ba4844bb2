"""Frozen parameters are folded into the program; values assigned later still take effect."""

from __future__ import annotations

import numpy as np
import pytest
from ortrain import SessionOptions
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture


@pytest.fixture
def frozen() -> Fixture:
    """The recorded run in which only the last layer is trained."""
    return Fixture("resnet_frozen")


def module_of(recorded, fold: bool) -> tuple[CheckpointState, Module, Optimizer]:
    options = SessionOptions()
    if not fold:
        options.add_session_config_entry("ortrain.disable_pass.fold_frozen_parameters", "1")
    state = CheckpointState.load_checkpoint(recorded.path("checkpoint"))
    module = Module(
        recorded.path("training_model.onnx"),
        state,
        recorded.path("eval_model.onnx"),
        session_options=options,
    )
    return state, module, Optimizer(recorded.path("optimizer_model.onnx"), module)


def losses(state, module, optimizer, batches) -> list[float]:
    found = []
    module.train()
    for x, y in batches:
        found.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    return found


def test_folding_changes_no_loss(frozen):
    folded = losses(*module_of(frozen, True), frozen.batches)
    plain = losses(*module_of(frozen, False), frozen.batches)
    np.testing.assert_allclose(folded, plain, rtol=1e-5)
    np.testing.assert_allclose(folded, frozen.expected["train_losses"][: len(folded)], rtol=1e-4)


@pytest.mark.parametrize("way", ["update_parameter", "from_buffer"])
def test_new_values_of_a_frozen_parameter_are_used(frozen, way):
    results = []
    for fold in (True, False):
        state, module, optimizer = module_of(frozen, fold)
        before = losses(state, module, optimizer, frozen.batches[:2])
        name = next(n for n, p in state.parameters if not p.requires_grad and p.data.ndim == 4)
        changed = state.parameters[name].data * np.float32(1.5)
        if way == "update_parameter":
            state.parameters[name] = changed
        else:
            buffer = module.get_contiguous_parameters()
            values = buffer.numpy() * np.float32(1.5)
            module.copy_buffer_to_parameters(type(buffer).ortvalue_from_numpy(values), trainable_only=False)
        after = losses(state, module, optimizer, frozen.batches[:2])
        assert after != before
        results.append([*before, *after])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
