"""The members that the documentation of the older Python API lists."""

from __future__ import annotations

import inspect

import numpy as np
import ortrain
import pytest
from legacy_models import batch, feed, mlp, parameters
from ortrain.capi import _pybind_state as C

SESSION = (
    "disable_fallback", "enable_fallback", "end_profiling", "get_inputs", "get_model_state", "get_modelmeta",
    "get_optimizer_state", "get_outputs", "get_overridable_initializers", "get_partition_info_map",
    "get_profiling_start_time_ns", "get_provider_options", "get_providers", "get_session_options", "get_state",
    "io_binding", "is_output_fp32_node", "load_state", "run", "run_with_iobinding", "run_with_ort_values", "set_providers",
)  # fmt: skip
INNER = (
    "finalize", "get_model_state", "get_optimizer_state", "get_partition_info_map", "get_state", "is_output_fp32_node",
    "load_model", "load_state", "read_bytes",
)  # fmt: skip


@pytest.mark.parametrize("name", SESSION)
def test_a_member_of_the_session(name: str) -> None:
    assert callable(getattr(ortrain.TrainingSession, name))


@pytest.mark.parametrize("name", INNER)
def test_a_member_of_the_inner_session(name: str) -> None:
    assert callable(getattr(C.TrainingSession, name))


@pytest.mark.parametrize("name", ["build", "get_model", "save"])
def test_a_member_of_the_gradient_graph_builder(name: str) -> None:
    assert callable(getattr(C.GradientGraphBuilder, name))


def test_the_constructors() -> None:
    found = inspect.signature(ortrain.TrainingSession.__init__)
    assert list(found.parameters) == [
        "self", "path_or_bytes", "parameters", "sess_options", "providers", "provider_options",
    ]  # fmt: skip
    assert [p.default for p in found.parameters.values()][3:] == [None, None, None]
    assert issubclass(ortrain.TrainingSession, ortrain.InferenceSession)
    C.TrainingSession()
    C.TrainingSession(ortrain.SessionOptions())


def test_what_onnxruntime_documented_and_did_not_have() -> None:
    options = ortrain.SessionOptions()
    options.intra_op_num_threads = 1
    s = ortrain.TrainingSession(mlp(), parameters(), options)
    assert s.get_providers() == ["CPUExecutionProvider"]
    assert s.get_provider_options() == {"CPUExecutionProvider": {}}
    assert s.get_session_options().intra_op_num_threads == 1
    assert s.get_modelmeta().graph_name == "g"
    assert s.get_overridable_initializers() == []
    s.enable_fallback()
    s.disable_fallback()
    assert s.end_profiling() == ""
    assert s.get_profiling_start_time_ns() == 0
    s.run(["loss"], feed(batch()))
    before = s.get_state()
    s.set_providers(["CPUExecutionProvider"], [{}])
    for name, value in s.get_state().items():
        np.testing.assert_array_equal(value, before[name])
    s.run(["loss"], feed(batch()))


def test_a_binding_trains() -> None:
    one, other = (ortrain.TrainingSession(mlp(), parameters()) for _ in range(2))
    binding = one.io_binding()
    for name, value in feed(batch()).items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("loss")
    for _ in range(3):
        one.run_with_iobinding(binding)
        loss = other.run(["loss"], feed(batch()))[0]
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], loss)
    for name, value in other.get_state().items():
        np.testing.assert_array_equal(one.get_state()[name], value)


def test_a_bound_output_is_computed_in_its_array_and_state_shows_each_run() -> None:
    one, other = (ortrain.TrainingSession(mlp(), parameters()) for _ in range(2))
    pred, data = np.zeros((8, 3), np.float32), feed(batch())
    binding = one.io_binding()
    for name, value in data.items():
        binding.bind_input(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
    binding.bind_output("pred", "cpu", 0, np.float32, [8, 3], pred.ctypes.data)
    for k in range(3):
        data["x"][:] = batch(k)["x"]  # the bound array, of which there is no copy
        one.run_with_iobinding(binding)
        expected = other.run(["pred"], {**feed(batch()), "x": batch(k)["x"]})[0]
        np.testing.assert_array_equal(pred, expected)
        for name, value in other.get_state().items():
            np.testing.assert_array_equal(one.get_state()[name], value)
