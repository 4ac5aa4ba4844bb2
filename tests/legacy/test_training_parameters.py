"""TrainingParameters: every member with the type and the default of onnxruntime 1.16.3."""

from __future__ import annotations

from typing import Any

import numpy as np
import ortrain
import pytest
from ortrain.capi import _pybind_state

FLAGS = dict.fromkeys(
    (
        "allreduce_post_accumulation", "attn_dropout_recompute", "enable_adasum", "gelu_recompute",
        "set_gradients_as_graph_outputs", "transformer_layer_recompute", "use_fp16_moments",
        "use_memory_efficient_gradient", "use_mixed_precision",
    ),
    False,
) | {"enable_grad_norm_clip": True}  # fmt: skip
NUMBERS = {
    "data_parallel_size": 1, "deepspeed_zero_stage": 0, "gradient_accumulation_steps": 1, "horizontal_parallel_size": 1,
    "num_pipeline_micro_batches": 1, "number_recompute_layers": 0, "pipeline_parallel_size": 1,
    "propagate_cast_ops_level": 1, "world_rank": 0, "world_size": 1,
}  # fmt: skip
TEXTS = dict.fromkeys(
    (
        "loss_output_name", "model_after_graph_transforms_path", "model_with_gradient_graph_path",
        "model_with_training_graph_path", "pipeline_cut_info_string", "training_optimizer_name",
    ),
    "",
) | {"lr_params_feed_name": "Learning_Rate"}  # fmt: skip
CONTAINERS: dict[str, Any] = {
    "immutable_weights": {}, "optimizer_attributes_map": {}, "optimizer_int_attributes_map": {},
    "propagate_cast_ops_allow": [], "sliced_axes": {}, "sliced_schema": {}, "sliced_tensor_names": [],
    "weights_not_to_train": set(), "weights_to_train": set(),
}  # fmt: skip
DEFAULTS = FLAGS | NUMBERS | TEXTS | CONTAINERS | {"loss_scale": 0.0}

VALUES: dict[str, Any] = {
    "immutable_weights": {"Add": [(1, 0.5)]},
    "optimizer_attributes_map": {"w": {"alpha": 0.5}, "b": {}},
    "optimizer_int_attributes_map": {"w": {"weight_decay_mode": 1}},
    "propagate_cast_ops_allow": ["Erf"],
    "sliced_axes": {"x": 0},
    "sliced_schema": {"x": [2, 3]},
    "sliced_tensor_names": ["x"],
    "weights_not_to_train": {"w"},
    "weights_to_train": {"w", "b"},
    "loss_scale": 2.5,
}
WRONG: dict[str, list[Any]] = {
    **{name: ["yes", None, 1.5] for name in FLAGS},
    **{name: [1.5, "1", None, 2**31] for name in NUMBERS},
    **{name: [None, 1, ["a"]] for name in TEXTS},
    "immutable_weights": [{"Add": {1: 0.0}}, {"Add": [(1, 0.0, 2)]}, {"Add": [(1.5, 0.0)]}, []],
    "optimizer_attributes_map": [{"w": {"alpha": "a"}}, {"w": 1.0}, {1: {}}, None],
    "optimizer_int_attributes_map": [{"w": {"a": 0.5}}, None],
    "propagate_cast_ops_allow": ["Erf", {"Erf"}, [1], None],
    "sliced_axes": [{"x": 0.5}, None],
    "sliced_schema": [{"x": 1}, {"x": [1.5]}, None],
    "sliced_tensor_names": ["x", {"x"}, None],
    "weights_not_to_train": [["w"], ("w",), "w", None],
    "weights_to_train": [["w"], ("w",), "w", {1}, None],
    "loss_scale": ["1", None],
}


def test_there_are_37_members_and_one_method() -> None:
    members = {name for name in dir(ortrain.TrainingParameters) if not name.startswith("_")}
    assert members == {*DEFAULTS, "set_optimizer_initial_state"}
    assert len(members) == 38
    assert _pybind_state.TrainingParameters is ortrain.TrainingParameters


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_member_has_its_default_and_keeps_a_value(name: str) -> None:
    parameters = ortrain.TrainingParameters()
    found = getattr(parameters, name)
    assert found == DEFAULTS[name]
    assert type(found) is type(DEFAULTS[name])
    value = VALUES.get(name, {bool: True, int: 3, str: "a"}.get(type(found)))
    setattr(parameters, name, value)
    assert getattr(parameters, name) == value
    assert getattr(ortrain.TrainingParameters(), name) == DEFAULTS[name]


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_member_refuses_values_of_other_types_and_keeps_its_own(name: str) -> None:
    parameters = ortrain.TrainingParameters()
    for wrong in WRONG[name]:
        with pytest.raises(TypeError, match=name):
            setattr(parameters, name, wrong)
    assert getattr(parameters, name) == DEFAULTS[name]


@pytest.mark.parametrize("name", sorted(CONTAINERS))
def test_a_container_is_copied_in_and_out(name: str) -> None:
    parameters = ortrain.TrainingParameters()
    value = VALUES[name]
    given = type(value)(value)
    setattr(parameters, name, given)
    given.clear()
    getattr(parameters, name).clear()
    assert getattr(parameters, name) == value


def test_conversions_that_onnxruntime_makes() -> None:
    parameters = ortrain.TrainingParameters()
    parameters.use_mixed_precision = 1  # type: ignore[assignment]
    parameters.loss_output_name = b"loss"  # type: ignore[assignment]
    parameters.sliced_tensor_names = ("x",)  # type: ignore[assignment]
    parameters.optimizer_attributes_map = {"w": {"alpha": 1}}
    parameters.optimizer_int_attributes_map = {"w": {"do_bias_correction": True}}
    assert parameters.use_mixed_precision is True
    assert parameters.loss_output_name == "loss"
    assert parameters.sliced_tensor_names == ["x"]
    assert parameters.optimizer_attributes_map == {"w": {"alpha": 1.0}}
    assert parameters.optimizer_int_attributes_map == {"w": {"do_bias_correction": 1}}


def test_an_unknown_attribute_is_refused() -> None:
    with pytest.raises(AttributeError):
        ortrain.TrainingParameters().weight_to_train = {"w"}  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        ortrain.TrainingParameters().gelu_checkpoint  # type: ignore[attr-defined]  # noqa: B018


def test_an_initial_state_is_made_of_arrays() -> None:
    parameters = ortrain.TrainingParameters()
    parameters.set_optimizer_initial_state({"w": {"Moment_1": np.zeros(2, np.float32)}})
    with pytest.raises(RuntimeError, match="expected an array for 'Moment_1'"):
        parameters.set_optimizer_initial_state({"w": {"Moment_1": 1.0}})
