"""Gradients leave a step one by one, and travel rounded: what several processes stand on, in one."""

from __future__ import annotations

import pathlib

import ml_dtypes
import numpy as np
import pytest
from modules import Alone, batches, write_artifacts
from ortrain import OrtValue, RunOptions, _ortrain
from ortrain._support.signatures import StepSignature
from ortrain._support.values import to_writable
from ortrain.distributed.wire import Chunks, narrow, widen


def test_a_step_hands_out_every_gradient_when_it_is_complete(tmp_path: pathlib.Path) -> None:
    write_artifacts(tmp_path)
    alone = Alone(tmp_path)
    module = alone.module
    names = [name for name, _ in alone.state.parameters]
    counts = [parameter.data.size for _, parameter in alone.state.parameters]
    starts = dict(zip(np.cumsum([0, *counts[:-1]]).tolist(), names, strict=True))
    buffer = np.full(sum(counts), np.nan, np.float32)
    found: list[str] = []
    parts: dict[str, np.ndarray] = {}

    def ready(first: int, count: int) -> None:
        found.append(starts[first])
        parts[starts[first]] = buffer[first : first + count].copy()
        buffer[first : first + count] = 0  # what the caller does with it does not reach the gradients

    options = RunOptions()
    watch = _ortrain.GradientWatch(options._handle, to_writable(buffer), ready)
    step = StepSignature.of(module._handle, True, module.input_names(), module.output_names())
    (batch,) = batches(0)
    for repeat in (1, 2):  # the second step adds to the first one's gradients
        _ortrain.train_step(module._handle, options._handle, step.take(batch), step.output_count)
        watch.check()
        assert sorted(found) == sorted(names)
        assert found.index("fc.w") < found.index("conv2.w") < found.index("conv1.w")
        for name, parameter in alone.state.parameters:
            np.testing.assert_array_equal(parts[name].reshape(parameter.data.shape), parameter.grad)
        found.clear()
        assert repeat


def test_what_the_function_raises_is_raised_after_the_step(tmp_path: pathlib.Path) -> None:
    write_artifacts(tmp_path)
    module = Alone(tmp_path).module
    buffer = np.zeros(module.get_parameters_size(), np.float32)

    def fail(first: int, count: int) -> None:
        raise ZeroDivisionError("in the function")

    options = RunOptions()
    watch = _ortrain.GradientWatch(options._handle, to_writable(buffer), fail)
    step = StepSignature.of(module._handle, True, module.input_names(), module.output_names())
    (batch,) = batches(0)
    _ortrain.train_step(module._handle, options._handle, step.take(batch), step.output_count)
    with pytest.raises(ZeroDivisionError):
        watch.check()
    watch.check()


def test_a_buffer_of_another_size_is_refused(tmp_path: pathlib.Path) -> None:
    write_artifacts(tmp_path)
    module = Alone(tmp_path).module
    options = RunOptions()
    watch = _ortrain.GradientWatch(options._handle, to_writable(np.zeros(3, np.float32)), lambda *_: None)
    step = StepSignature.of(module._handle, True, module.input_names(), module.output_names())
    (batch,) = batches(0)
    with pytest.raises(ValueError, match="train step with a buffer for gradients: expected a buffer of"):
        _ortrain.train_step(module._handle, options._handle, step.take(batch), step.output_count)
    assert watch is not None


def test_bfloat16_is_rounded_to_the_nearest_and_to_even() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.standard_normal(10_000).astype(np.float32) * 10.0 ** rng.integers(-30, 30, 10_000),
            [0.0, -0.0, np.inf, -np.inf, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 1e-45],
        ]
    ).astype(np.float32)
    expected = values.astype(ml_dtypes.bfloat16)
    halves, wide = np.empty(values.shape, np.uint16), np.empty_like(values)
    narrow(values, halves)
    np.testing.assert_array_equal(halves, expected.view(np.uint16))
    widen(halves, wide)
    np.testing.assert_array_equal(wide, expected.astype(np.float32))
    nan = np.array([np.nan, -np.nan], np.float32)
    nan.view(np.uint32)[0] = 0x7F800001  # whose upper half alone would be infinity
    narrow(nan, halves[:2])
    widen(halves[:2], wide[:2])
    assert np.isnan(wide[:2]).all()


def test_floats_are_converted_between_tensors_that_fit() -> None:
    floats = OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="expected a tensor of floats and one of float16 or bfloat16"):
        _ortrain.convert_floats(floats, floats)
    halves = OrtValue.ortvalue_from_numpy(np.zeros(3, np.float16))
    with pytest.raises(ValueError, match="expected 2 elements in the tensor for the result, found 3"):
        _ortrain.convert_floats(floats, halves)
    array = np.zeros(2, np.float16)
    _ortrain.convert_floats(
        OrtValue.ortvalue_from_numpy(np.array([1.5, -2], np.float32)), OrtValue.ortvalue_from_numpy(array)
    )
    np.testing.assert_array_equal(array, np.array([1.5, -2], np.float16))


@pytest.mark.parametrize("least", [1, 5, 100])
def test_parts_are_sent_in_one_order_however_gradients_come(least: int) -> None:
    counts = [4, 0, 3, 2, 6]
    starts = np.cumsum([0, *counts[:-1]])
    chunks = Chunks(counts, least)
    assert sum(part.stop - part.start for part in chunks.parts) == 15
    for order in ([4, 3, 2, 1, 0], [0, 2, 4, 1, 3], [2, 0, 1, 3, 4]):
        chunks.restart()
        sent = [part for i in order for part in chunks.completed(int(starts[i]), counts[i])]
        assert sent == chunks.parts
