"""Whole models in ONNX's text form, checked against outside oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import gradient_coverage as coverage
import numpy as np
import onnx
import onnx.parser
from differences import central_differences
from onnx.reference import ReferenceEvaluator
from runner import Array, gradient_model, numbers, run_in_turn, run_model


def model_of(text: str) -> bytes:
    """The model written in the syntax of onnx.parser."""
    return onnx.parser.parse_model(text).SerializeToString()


def check_model(
    text: str, feeds: Sequence[Mapping[str, Array]], rtol: float = 1e-6, atol: float = 1e-6
) -> list[dict[str, Array]]:
    """Run a model with each of some inputs and compare all outputs with what onnx.reference computes.

    Parameters
    ----------
    text
        The model, as onnx.parser reads it.
    feeds
        Values of all inputs by name, one mapping per run.
    """
    model = model_of(text)
    reference = ReferenceEvaluator(onnx.load_from_string(model))
    names = [output.name for output in onnx.load_from_string(model).graph.output]
    found = []
    for feed, results in zip(feeds, run_in_turn(model, feeds), strict=True):
        for name, expected in zip(names, reference.run(None, dict(feed)), strict=True):
            value = np.asarray(results[name])
            assert value.shape == np.shape(expected), f"{name}: shape {value.shape} for {np.shape(expected)}"
            assert value.dtype == np.asarray(expected).dtype, name
            np.testing.assert_allclose(value, expected, rtol, atol, err_msg=name)
        found.append(results)
    return found


def differences_of(
    model: bytes,
    feeds: Mapping[str, Array],
    names: Sequence[str],
    loss: str = "loss",
    step: float = 1e-5,
    places: Callable[[Array], Iterable[tuple[int, ...]]] | None = None,
) -> list[Array]:
    """The gradients of a model's loss by central differences.

    Parameters
    ----------
    names
        The inputs whose gradients are wanted.
    places
        The elements of an input that are moved; all by default.
    """
    with numbers(model) as number_of:
        return [
            central_differences(
                number_of(feeds, name, loss),
                np.asarray(feeds[name]),
                step,
                places and places(feeds[name]),
            )
            for name in names
        ]


def check_model_gradient(
    text: str,
    feeds: Mapping[str, Array],
    wrt: Sequence[str],
    loss: str = "loss",
    rtol: float = 1e-5,
    step: float = 1e-5,
) -> dict[str, Array]:
    """Compare the gradients of a model's scalar loss with central finite differences, all in double.

    Parameters
    ----------
    wrt
        The inputs whose gradient is checked.

    Returns
    -------
    dict
        The gradients that ortrain computed, by input.
    """
    forward = model_of(text)
    computed = run_model(gradient_model(forward, list(wrt), loss), feeds)
    numerics = differences_of(forward, feeds, wrt, loss, step)
    gradients = {}
    for name, numeric in zip(wrt, numerics, strict=True):
        x = np.asarray(feeds[name])
        found = np.asarray(computed[f"{name}_grad"])
        assert found.shape == x.shape, f"gradient of {name}: shape {found.shape}, expected {x.shape}"
        largest = float(np.abs(numeric).max(initial=0.0))
        np.testing.assert_allclose(
            found, numeric, rtol, rtol * max(largest, 1e-3), err_msg=f"gradient of {name}"
        )
        gradients[name] = found
    coverage.note_model(onnx.load_from_string(forward).graph)
    return gradients
