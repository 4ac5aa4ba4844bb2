"""STFT and its gradient, against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from complex_numbers import to_complex, to_parts
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"linear": ["STFT"]}

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


def test_stft_rejects_what_does_not_fit() -> None:
    x, step = uniform(1, 4, 1), np.array(1)
    check_rejected(Op("STFT"), [x, step, uniform(5)], "does not fit", constants={1})
    check_rejected(Op("STFT"), [x, step, uniform(3), np.array(2)], "more than a frame", constants={1, 3})
    check_rejected(Op("STFT"), [x, np.array(0), uniform(2)], "frame_step must be positive", constants={1})
