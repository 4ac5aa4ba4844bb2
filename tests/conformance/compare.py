"""When a case passes, and how a failure is described."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from .cases import Array, Case, Value
from .runtimes import Run

DRAWS = 400
"""How often a model that draws random numbers is run."""
_SIGMAS = 6


class Mismatch(AssertionError):
    """An output differs from what the case expects."""


def check(case: Case, run: Run) -> None:
    """Run a case.

    Outputs have the expected type and shape; values are within the tolerance that the case states, and in
    bfloat16 within two units in the last place. Random values differ between libraries: for them the mean of many runs
    is compared. Elements whose value ONNX leaves undefined are not compared (`undefined_elements`).

    Raises
    ------
    Mismatch
        When an output is not what the case expects.
    """
    for feeds, expected in case.runs:
        found = run(feeds)
        if len(found) != len(expected):
            raise Mismatch(f"{len(found)} outputs, expected {len(expected)}")
        pairs = [pair for values in zip(found, expected, strict=True) for pair in tensors_of(*values)]
        for array, wanted in pairs:
            if array.dtype != wanted.dtype:
                raise Mismatch(f"an output of type {array.dtype}, expected {wanted.dtype}")
            if array.shape != wanted.shape:
                raise Mismatch(f"an output of shape {array.shape}, expected {wanted.shape}")
        if case.draws:
            check_draws(case, feeds, run)
        else:
            for array, wanted in pairs:
                undefined = undefined_elements(case, feeds, wanted)
                if undefined is not None:
                    array, wanted = array[~undefined], wanted[~undefined]
                check_values(array, wanted, case.rtol, case.atol)


def undefined_elements(case: Case, feeds: dict[str, Value], expected: Array) -> Array | None:
    """Return which elements of an output ONNX leaves undefined, or None.

    A float cast to an integer type without this value is undefined. The package computes its expected values when it is
    loaded, and they depend on the version of ``ml_dtypes``: 0.6 keeps the lowest bits, 0.7 returns 0.
    """
    if not case.name.startswith(("test_cast_", "test_castlike_")):
        return None
    given = feeds[case.model.graph.input[0].name]
    if not isinstance(given, np.ndarray) or not _is_float(given.dtype):
        return None
    if expected.dtype.kind == "b" or _is_float(expected.dtype):
        return None
    range_of_type = ml_dtypes.iinfo(expected.dtype)
    whole = np.trunc(given.astype(np.float64))
    return ~((whole >= int(range_of_type.min)) & (whole <= int(range_of_type.max)))


def _is_float(dtype: np.dtype[Any]) -> bool:
    try:
        ml_dtypes.finfo(dtype)
    except ValueError:
        return False
    return True


def tensors_of(found: Value, expected: Value) -> list[tuple[Array, Array]]:
    """Return the tensors of an output paired with the expected ones.

    Raises
    ------
    Mismatch
        When one is a sequence, a tensor or empty and the other is not, or sequences differ in length.
    """
    kinds = [
        "nothing" if v is None else f"a sequence of {len(v)}" if isinstance(v, list) else "a tensor"
        for v in (found, expected)
    ]
    if kinds[0] != kinds[1]:
        raise Mismatch(f"an output is {kinds[0]}, expected {kinds[1]}")
    if found is None or expected is None:
        return []
    if isinstance(found, list) and isinstance(expected, list):
        return list(zip(found, expected, strict=True))
    return [(np.asarray(found), np.asarray(expected))]


def check_values(found: Array, expected: Array, rtol: float, atol: float) -> None:
    """Compare within a tolerance, as the package's own runner does."""
    if found.dtype.kind == "V" or found.dtype.type.__module__ == "ml_dtypes":
        rtol = max(rtol, 2**-6) if found.dtype.name == "bfloat16" else rtol
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    with np.errstate(all="ignore"):
        close = np.isclose(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return
    first = tuple(int(i) for i in np.argwhere(~close)[0])
    with np.errstate(all="ignore"):
        apart = np.abs(np.asarray(found, np.complex128) - expected)
    raise Mismatch(
        f"values differ by up to {np.nanmax(apart):.0e} where the largest is "
        f"{np.nanmax(np.abs(expected)):.0e}: {int((~close).sum())} of {close.size}, the first at {list(first)}, "
        f"{found[first]}, expected {expected[first]}"
    )


def check_draws(case: Case, feeds: dict[str, Value], run: Run) -> None:
    """Compare many runs of a model that draws random numbers with as many of the package's reference.

    Every value also occurs in the reference, and the means differ by no more than chance allows.
    """
    model = ModelProto()
    model.CopyFrom(case.model)
    for node in model.graph.node:  # with a seed, the reference draws the same in every run
        for attribute in [a for a in node.attribute if a.name == "seed"]:
            node.attribute.remove(attribute)
    reference = ReferenceEvaluator(model)
    wanted = [
        np.stack(some).astype(np.float64)
        for some in zip(*(_run(reference, feeds) for _ in range(DRAWS)), strict=True)
    ]
    found = [
        np.stack(some).astype(np.float64) for some in zip(*(run(feeds) for _ in range(DRAWS)), strict=True)
    ]
    for ours, theirs in zip(found, wanted, strict=True):
        for at in np.ndindex(ours.shape[1:]):
            drawn, allowed = ours[(slice(None), *at)], np.unique(theirs[(slice(None), *at)])
            if not np.isclose(drawn[:, None], allowed, rtol=1e-5).any(axis=1).all():
                raise Mismatch("values differ: some are never drawn by the reference")
        spread = np.sqrt((ours.var(axis=0) + theirs.var(axis=0)) / DRAWS)
        if (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) > _SIGMAS * spread + 1e-6).any():
            raise Mismatch("values differ: the means are apart")
        if (theirs != theirs[0]).any() and (ours == ours[0]).all():
            raise Mismatch("values differ: every run draws the same")


def _run(reference: ReferenceEvaluator, feeds: dict[str, Value]) -> list[Array]:
    outputs = reference.run(None, feeds)
    assert isinstance(outputs, list)
    return outputs


_REASONS = (
    (r"Could not find an implementation for (\w+)\(\d+\)", r"no kernel for \1"),
    (r"whose operator has no kernel:.*?\((?:[\w.]+\.)?(\w+)\)", r"no kernel for \1"),
    (r"Failed to find kernel for (\w+)", r"no kernel for \1"),
    (r"(\w+)\(-\d+\) is not a registered function", r"no kernel for \1"),
    (r"Opset (\d+) is under development", r"opset \1 is not supported"),
    (r"it uses version \d+ of the ONNX operators", "the opset is not supported"),
    (r"[Uu]nsupported model IR version", "the IR version is not supported"),
    (r"tensors of type data type \d+ are not supported", "the element type is not supported"),
    (r"This is an invalid model|Type Error", "the model is held invalid"),
)
"""Messages of cases that fail for the same reason."""

_VARYING = (
    r"\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"(?:CreateSessionFromArray|Run): ",
    r"node (?:producing )?[\"'][^\"']*[\"'] \([\w.]+\): ",
    r"(/[\w.+-]+)+/?:\d*",
)
"""Parts of messages that differ between cases, and operators, which the record lists separately."""


def reason(error: BaseException) -> str:
    """Return why a case fails, in the same words for cases that fail for the same reason."""
    text = re.sub(r"\s+", " ", str(error)).strip()
    if isinstance(error, Mismatch):
        return text.partition(":")[0] if text.startswith("values differ") else re.sub(r"\(.*?\)", "(…)", text)
    for pattern, words in _REASONS:
        if match := re.search(pattern, text):
            return match.expand(words)
    for pattern in _VARYING:
        text = re.sub(pattern, "", text)
    return re.sub(r"'[^']*'|\"[^\"]*\"|\b\d+\b", "…", text)[:120].strip()
