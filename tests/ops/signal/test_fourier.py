"""DFT, STFT and MelWeightMatrix, against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    check_forward,
    check_gradient,
    check_rejected,
    make_model,
    run,
    uniform,
)
from onnx.reference import ReferenceEvaluator

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 12, 13, 30]


def to_complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0].astype(complex)


def to_parts(z: Array) -> Array:
    return np.stack([z.real, z.imag], axis=-1)


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_dft_of_any_length(length: int, parts: int, inverse: int) -> None:
    x = uniform(3, length, parts)
    transform = np.fft.ifft if inverse else np.fft.fft
    expected = to_parts(transform(to_complex(x), axis=1))
    check_forward(Op("DFT", {"inverse": inverse}, opset=20), [x], [expected], rtol=1e-12)
    check_forward(Op("DFT", {"inverse": inverse, "axis": 1}), [x], [expected], rtol=1e-12)


@pytest.mark.parametrize("length", [1000, 1024, 4099])
def test_dft_of_long_lines_in_float(length: int) -> None:
    x = uniform(length, 2, dtype=np.float32)
    expected = to_parts(np.fft.fft(to_complex(x.astype(np.float64)))).astype(np.float32)
    check_forward(Op("DFT", opset=20), [x], [expected], rtol=2e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -3, -4])
def test_dft_along_every_axis(axis: int) -> None:
    x = uniform(3, 5, 4, 2)
    expected = to_parts(np.fft.fft(to_complex(x), axis=axis if axis >= 0 else axis + 1))
    check_forward(Op("DFT", opset=20), [x, None, np.array(axis)], [expected], rtol=1e-12, constants={2})


@pytest.mark.parametrize("length", [2, 3, 5, 8, 9])
@pytest.mark.parametrize("onesided", [0, 1])
def test_dft_cuts_or_fills_the_signal(length: int, onesided: int) -> None:
    x, n = uniform(2, 5, 1), np.array(length)
    expected = (np.fft.rfft if onesided else np.fft.fft)(x[..., 0], length, axis=1)
    check_forward(
        Op("DFT", {"onesided": onesided}, opset=20), [x, n], [to_parts(expected)], rtol=1e-12, constants={1}
    )


@pytest.mark.parametrize("length", [None, 3, 4, 7, 8, 12])
def test_one_sided_inverse_gives_a_real_signal(length: int | None) -> None:
    x = uniform(2, 5, 2)
    n = None if length is None else np.array(length)
    expected = np.fft.irfft(to_complex(x), length, axis=1)[..., None]
    op = Op("DFT", {"onesided": 1, "inverse": 1}, opset=20)
    check_forward(op, [x, n], [expected], rtol=1e-12, constants={1} if length else ())
    check_gradient(op, [x, n], wrt=[0], constants={1} if length else ())


@pytest.mark.parametrize("length", [None, 1, 3, 4, 6, 8])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [0, -2])
def test_dft_gradient(axis: int, parts: int, inverse: int, length: int | None) -> None:
    x = uniform(4, 2, 4, parts)
    n = None if length is None else np.array(length)
    constants = {2} if length is None else {1, 2}
    op = Op("DFT", {"inverse": inverse}, opset=20)
    check_gradient(op, [x, n, np.array(axis)], wrt=[0], constants=constants)
    if parts == 1 and not inverse:
        op = Op("DFT", {"onesided": 1}, opset=20)
        check_gradient(op, [x, n, np.array(axis)], wrt=[0], constants=constants)


def test_dft_gradient_before_the_axis_was_an_input() -> None:
    check_gradient(Op("DFT"), [uniform(2, 5, 3, 1)])
    check_gradient(Op("DFT", {"axis": 2, "onesided": 1}), [uniform(2, 3, 6, 1)])


@pytest.mark.parametrize("attributes", [{}, {"inverse": 1}, {"onesided": 1}, {"onesided": 1, "inverse": 1}])
def test_dft_gradient_has_a_gradient(attributes: dict[str, int]) -> None:
    op = Op("DFTGrad", {"axis": -2, **attributes}, MICROSOFT, opset=20)
    parts = 1 if attributes == {"onesided": 1} else 2
    result = {(): (5, 2), ("inverse",): (5, 2), ("onesided",): (3, 2), ("onesided", "inverse"): (8, 1)}
    check_gradient(op, [uniform(2, *result[tuple(attributes)]), np.array([2, 5, parts])], constants={1})


def test_dft_refuses_what_it_cannot_transform() -> None:
    check_rejected(Op("DFT", opset=20), [uniform(4, 3)], r"\[\.\.\., 1\]")
    check_rejected(Op("DFT", opset=20), [uniform(4, 3, 1), np.array(0)], "must be positive", constants={1})
    check_rejected(Op("DFT", opset=20), [uniform(4, 1), None, np.array(-1)], "the last one", constants={2})
    check_rejected(Op("DFT", {"onesided": 1, "inverse": 1}, opset=20), [uniform(4, 1)], "complex")


STFT = [
    # signal, step, window, frame length, onesided
    ((2, 16, 1), 4, 8, None, 1),
    ((2, 16, 1), 3, 5, None, 0),
    ((1, 12, 2), 2, 6, None, 0),
    ((2, 10), 4, 4, 4, 1),
    ((2, 9, 1), 2, None, 4, 1),
    ((1, 8, 1), 8, None, 8, 1),
    ((1, 11, 1), 2, 3, 6, 1),
]


def stft_inputs(
    shape: tuple[int, ...], step: int, window: int | None, length: int | None
) -> list[Array | None]:
    return [
        uniform(*shape),
        np.array(step),
        None if window is None else uniform(window, seed=1),
        None if length is None else np.array(length),
    ]


def stft(signal: Array, step: int, window: Array | None, length: int | None, onesided: int) -> Array:
    z = to_complex(signal) if signal.ndim == 3 else signal.astype(complex)
    n = length or (z.shape[1] if window is None else len(window))
    weights = np.ones(n) if window is None else np.pad(window, (0, n - len(window)))
    frames = [z[:, at : at + n] * weights for at in range(0, z.shape[1] - n + 1, step)]
    spectrum = np.fft.fft(np.stack(frames, axis=1), axis=2)
    return to_parts(spectrum[:, :, : n // 2 + 1] if onesided else spectrum)


@pytest.mark.parametrize(("shape", "step", "window", "length", "onesided"), STFT)
def test_stft_transforms_frames(
    shape: tuple[int, ...], step: int, window: int | None, length: int | None, onesided: int
) -> None:
    inputs = stft_inputs(shape, step, window, length)
    assert inputs[0] is not None
    expected = stft(inputs[0], step, inputs[2], length, onesided)
    constants = {1} if length is None else {1, 3}
    op = Op("STFT", {"onesided": onesided})
    check_forward(op, inputs, [expected], rtol=1e-12, constants=constants)
    check_gradient(op, inputs, wrt=[0] if window is None else [0, 2], constants=constants)
    if window is not None:
        check_gradient(op, inputs, wrt=[2], constants=constants)


def test_stft_refuses_what_does_not_fit() -> None:
    x, step = uniform(1, 4, 1), np.array(1)
    check_rejected(Op("STFT"), [x, step, uniform(5)], "does not fit", constants={1})
    check_rejected(Op("STFT"), [x, step, uniform(3), np.array(2)], "more than a frame", constants={1, 3})
    check_rejected(Op("STFT"), [x, np.array(0), uniform(2)], "frame_step must be positive", constants={1})


@pytest.mark.parametrize(("bins", "length", "rate"), [(8, 16, 8192), (20, 512, 16000), (1, 8, 8000)])
@pytest.mark.parametrize(("low", "high"), [(0.0, 4000.0), (125.0, 3800.0)])
@pytest.mark.parametrize("dtype", [1, 11])
def test_mel_weights(bins: int, length: int, rate: int, low: float, high: float, dtype: int) -> None:
    inputs = [np.array(v) for v in (bins, length, rate)] + [np.float32([low])[0], np.float32([high])[0]]
    op = Op("MelWeightMatrix", {"output_datatype": dtype})
    model = make_model(op, inputs, constants=range(5))
    expected = ReferenceEvaluator(model).run(None, {})
    (found,) = run(op, inputs, constants=range(5))
    assert found.dtype == expected[0].dtype
    np.testing.assert_allclose(found, expected[0], rtol=1e-6)


def test_mel_weights_refuse_frequencies_above_the_spectrum() -> None:
    inputs = [np.array(8), np.array(16), np.array(8000), np.float32(0), np.float32(64000)]
    check_rejected(Op("MelWeightMatrix"), inputs, "above the frequencies", constants=range(5))
