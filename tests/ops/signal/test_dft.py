"""DFT and its gradient, against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import ortrain
import pytest
from complex_numbers import to_complex, to_parts
from helpers import MICROSOFT, Op, check_forward, check_gradient, check_rejected, make_model, uniform

SPECIAL_POINTS = {"linear": ["DFT"]}

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 12, 13, 30]


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


def test_threads_write_only_their_own_lines() -> None:
    lines, length = 64, 512  # enough work for several threads
    x = uniform(lines, length, 1, dtype=np.float32)
    options = ortrain.SessionOptions()
    options.intra_op_num_threads = 4
    session = ortrain.InferenceSession(make_model(Op("DFT", opset=20), [x]).SerializeToString(), options)
    memory = np.full((5, lines, length, 2), 7, np.float32)  # the output is the middle of it
    y = memory[2]
    binding = session.io_binding()
    binding.bind_cpu_input("x0", x)
    binding.bind_output(session.get_outputs()[0].name, "cpu", 0, np.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(y, to_parts(np.fft.fft(x[..., 0])), rtol=0, atol=1e-5)
    assert (np.delete(memory, 2, axis=0) == 7).all()


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


def test_dft_rejects_what_it_cannot_transform() -> None:
    check_rejected(Op("DFT", opset=20), [uniform(4, 3)], r"\[\.\.\., 1\]")
    check_rejected(Op("DFT", opset=20), [uniform(4, 3, 1), np.array(0)], "must be positive", constants={1})
    check_rejected(
        Op("DFT", opset=20), [uniform(4, 1), None, np.array(-1)], "must not be the last axis", constants={2}
    )
    check_rejected(Op("DFT", {"onesided": 1, "inverse": 1}, opset=20), [uniform(4, 1)], "complex")
